#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bellows::serve {

/// One load: either a number of requests that are always in flight (closed loop), or a rate (open loop).
struct LoadLevel {
  int64_t concurrency = 0;  ///< 0: open loop
  double rate = 0;          ///< requests per second of an open loop
};

/// Times in seconds. A percentile is one of the measured values: the smallest that is not exceeded by the given share.
struct LatencySummary {
  uint64_t count = 0;
  double mean_s = 0, p50_s = 0, p90_s = 0, p95_s = 0, p99_s = 0, max_s = 0;
};

/// Mean times that the server reported for the requests of the measurement, in seconds.
struct ServerTimes {
  uint64_t requests = 0;
  double queue_s = 0, input_s = 0, compute_s = 0, output_s = 0;
  double batch_size = 0;  ///< mean rows of a call of the model
};

struct LevelResult {
  LoadLevel level{};
  /// Whether throughput and mean latency of the last three windows differ by at most LoadOptions::stability from their means.
  bool stable = false;
  double seconds = 0;  ///< length of the last windows, which the other values describe
  uint64_t requests = 0, failed = 0;
  double requests_per_s = 0, samples_per_s = 0;  ///< of successful requests
  LatencySummary latency{};                      ///< of successful requests, and of requests that were never answered
  std::map<std::string, uint64_t> errors{};      ///< number by HTTP status or by reason, such as "timeout"
  std::string first_error{};                     ///< the message of the first error
  std::optional<ServerTimes> server{};           ///< nothing if the server has no statistics
  std::vector<double> window_rates{};            ///< requests per second of all windows

  // Whether the client limits the result.
  double client_s = 0;      ///< CPU time of this process's client thread per request
  double client_share = 0;  ///< share of one core that the client thread used; near 1, the client was the bottleneck
  double delay_p99_s = 0;   ///< open loop: time from the intended to the real start of a request
};

struct LoadReport {
  std::string url{}, model{}, version{};
  std::string server{};  ///< name and version of the server
  std::string inputs{};  ///< such as "x FP32 [1, 4]"
  int64_t rows = 1;      ///< samples of one request
  uint64_t request_bytes = 0;
  std::string first_answer{};  ///< body of the answer to the first request
  std::vector<LevelResult> levels{};
};

/// Returns a chart of the latencies (p50 and p99) against the throughput, as an SVG file. Levels without successful
/// requests are left out.
std::string latency_chart(const LoadReport& report);

/// Returns the report as JSON text.
std::string load_report_json(const LoadReport& report);

}  // namespace bellows::serve
