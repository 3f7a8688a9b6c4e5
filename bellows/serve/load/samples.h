#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bellows/serve/load/load_report.h"

namespace bellows::serve {

/// One request of a measurement. Times are nanoseconds after the start of the level.
struct LoadSample {
  int64_t intended = 0;  ///< when the request should start; in a closed loop, when it started
  int64_t done = 0;      ///< when it was answered or given up
  enum class End { ok, failed, unanswered } end = End::ok;
};

/// Returns the smallest value that at least the share `q` of the values does not exceed (nearest rank).
/// Params: sorted – in increasing order; 0 is returned if it is empty
int64_t percentile(std::span<const int64_t> sorted, double q);

LatencySummary summarize(std::vector<int64_t> latencies_ns);

/// Requests per second and mean latency of a window.
struct WindowRate {
  double rate = 0, mean_s = 0;
};

/// Counts the successful requests that were done from `begin` to `end`.
WindowRate window_rate(std::span<const LoadSample> samples, int64_t begin, int64_t end);

/// Returns whether the last three windows have requests, and differ by at most `tolerance` from the means of the three.
bool is_stable(std::span<const WindowRate> windows, double tolerance);

/// Returns the values of a result that depend only on the samples.
/// Params: begin, end    – the measured time
///         by_intention  – open loop: latencies are those of the requests that should have started in this time. Otherwise,
///                         those of the requests that were done in this time. The throughput always counts finished
///                         requests
LevelResult summarize_level(std::span<const LoadSample> samples, int64_t begin, int64_t end, bool by_intention);

}  // namespace bellows::serve
