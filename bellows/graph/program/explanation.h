#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::graph {

/// Statistics of a region so far.
struct Explanation {
  int64_t calls = 0;
  int64_t followed_calls = 0;  ///< in which no operator had to be recorded
  int64_t nested_calls = 0;    ///< inside another region, which records and follows their operators
  int64_t recordings = 0;      ///< recordings in memory
  int64_t dropped = 0;         ///< recordings that were dropped because of max_recordings
  int64_t abandoned = 0;       ///< calls with more than max_operators operators

  int64_t recorded = 0;      ///< operators that ran immediately and were recorded
  int64_t followed = 0;      ///< operators that matched a recording
  int64_t views = 0;         ///< of these: views, which need no execution
  int64_t at_once = 0;       ///< of these: ran immediately; factories and random operators
  int64_t barriers = 0;      ///< of these: ran immediately, after all pending operators
  int64_t deferred = 0;      ///< of these: became pending
  int64_t flushes = 0;       ///< runs of pending operators
  int64_t programs = 0;      ///< programs that the back end was asked to prepare
  int64_t program_runs = 0;  ///< runs that executed a prepared program
  int64_t results = 0;       ///< tensors made by deferred operators
  int64_t never_seen = 0;    ///< of these: no longer referenced when they were made, so that they need not exist
  int64_t lifted = 0;        ///< numbers that changed between calls and became inputs
  int64_t mismatches = 0;    ///< operators that matched no recording

  /// An operator that broke a graph: the reason, how often it did, and the place in your code that called it
  /// (call_site()).
  struct Cause {
    std::string op, why;
    int64_t times = 0;
    std::string site{};
  };
  std::string backend{};                                   ///< summary of the back end
  std::vector<Cause> mismatch_causes{}, barrier_causes{};  ///< at most 32 of each, the first ones

  Explanation& operator+=(const Explanation& other);
  std::string to_text() const;
};

namespace detail {
/// Adds a cause, or increases the count of an existing one.
void count_cause(std::vector<Explanation::Cause>& causes, const std::string& op, const std::string& why,
                 const std::string& site, int64_t times = 1);
}  // namespace detail

}  // namespace bellows::graph
