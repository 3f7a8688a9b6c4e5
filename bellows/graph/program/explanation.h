#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::graph {

/// What a region did so far.
struct Explanation {
  int64_t calls = 0;
  int64_t followed_calls = 0;  ///< in which no operator had to be recorded
  int64_t nested_calls = 0;    ///< inside another region, which saw their operators
  int64_t recordings = 0;      ///< ways through the region that are kept
  int64_t dropped = 0;         ///< recordings that had to make room
  int64_t abandoned = 0;       ///< calls that were too long to be recorded to their end

  int64_t recorded = 0;      ///< operators that ran as they arrived, and were written down
  int64_t followed = 0;      ///< operators that agreed with a recording
  int64_t views = 0;         ///< of these: nothing to run
  int64_t at_once = 0;       ///< of these: factories and random numbers, which run when they are called
  int64_t barriers = 0;      ///< of these: run at once, after all that was pending
  int64_t deferred = 0;      ///< of these: run later, when their graph ran
  int64_t flushes = 0;       ///< how often a graph, or a part of one, ran
  int64_t programs = 0;      ///< that a backend was asked to prepare
  int64_t program_runs = 0;  ///< of the runs: by what a backend prepared
  int64_t results = 0;       ///< tensors that deferred operators made
  int64_t never_seen = 0;    ///< of these: nobody held them when they were made; they need not exist
  int64_t lifted = 0;        ///< numbers that were seen to differ, and became inputs
  int64_t mismatches = 0;    ///< operators that agreed with no recording

  /// An operator, why it broke a graph, how often, and the place in the user's code that called it: call_site().
  struct Cause {
    std::string op, why;
    int64_t times = 0;
    std::string site{};
  };
  std::string backend{};                                   ///< what it says of itself
  std::vector<Cause> mismatch_causes{}, barrier_causes{};  ///< the first 32 of each

  Explanation& operator+=(const Explanation& other);
  std::string to_text() const;
};

namespace detail {
/// Adds a cause, or counts one that is there already.
void count_cause(std::vector<Explanation::Cause>& causes, const std::string& op, const std::string& why,
                 const std::string& site, int64_t times = 1);
}  // namespace detail

}  // namespace bellows::graph
