#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::graph {

/// Statistics of a region since its creation.
struct Explanation {
  int64_t calls = 0;
  int64_t followed_calls = 0;  ///< calls in which no operator had to be recorded
  int64_t nested_calls = 0;    ///< calls within another region, which follows their operators, or within a
                               ///< checkpoint with a policy or budget, which needs each operator
  int64_t plain_calls = 0;     ///< calls that ran eagerly, because their program is not expected to be faster
  int64_t replayed_calls = 0;  ///< calls whose program ran without the function
  int64_t verified_calls = 0;  ///< calls that ran the function to check that it still does the same
  int64_t replay_stops = 0;    ///< how often calls were no longer replayed, because something had changed
  int64_t recordings = 0;      ///< recordings in memory
  int64_t dropped = 0;         ///< recordings dropped because of max_recordings
  int64_t abandoned = 0;       ///< calls with more than max_operators operators

  int64_t recorded = 0;      ///< operators that ran immediately and were recorded
  int64_t followed = 0;      ///< operators that matched a recording
  int64_t views = 0;         ///< followed operators that are views, which need no execution
  int64_t at_once = 0;       ///< followed operators that ran immediately: factories and random operators
  int64_t barriers = 0;      ///< followed operators before which all pending operators ran
  int64_t deferred = 0;      ///< followed operators that became pending
  int64_t flushes = 0;       ///< number of times that pending operators ran
  int64_t programs = 0;      ///< programs that the back end was asked to prepare
  int64_t program_runs = 0;  ///< runs in which a prepared program replaced the operators
  int64_t results = 0;       ///< tensors that deferred operators computed
  int64_t never_seen = 0;    ///< those of these tensors that were no longer referenced when they were computed
  int64_t lifted = 0;        ///< numbers that changed between calls and became inputs
  int64_t mismatches = 0;    ///< operators that matched no recording

  /// An operator that was a barrier or matched no recording: the reason, how often this happened, and the line in your
  /// code that called the operator (call_site()).
  struct Cause {
    std::string op, why;
    int64_t times = 0;
    std::string site{};
  };
  std::string backend{};                                   ///< summary of the back end
  std::string advice{};                                    ///< an option that might make the calls faster
  std::vector<Cause> mismatch_causes{}, barrier_causes{};  ///< the first causes, at most 32 of each kind
  std::vector<Cause> replay_causes{};  ///< why calls were not replayed although the option is set; at most 32

  Explanation& operator+=(const Explanation& other);
  std::string to_text() const;
};

namespace detail {
/// Returns a hint to the option `replay` if it could help: for long recordings in which nothing changes.
std::string advice_for(const Explanation& said);
/// Adds a cause, or increases the count of an existing cause.
void count_cause(std::vector<Explanation::Cause>& causes, const std::string& op, const std::string& why,
                 const std::string& site, int64_t times = 1);
}  // namespace detail

}  // namespace bellows::graph
