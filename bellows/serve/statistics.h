#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows::serve {

using Clock = std::chrono::steady_clock;

/// When a request passed the steps of its execution.
struct RequestTimes {
  Clock::time_point received{}, queued{}, taken{}, inputs_ready{}, computed{}, done{};
};

enum class FailureReason { rejected, cancelled, backend, other };
inline constexpr size_t failure_reasons = 4;

struct DurationSum {
  uint64_t count = 0;
  uint64_t ns = 0;

  void add(Clock::duration duration) {
    ++count;
    ns += static_cast<uint64_t>(std::max<int64_t>(0, std::chrono::nanoseconds(duration).count()));
  }
};

/// Counts of requests by their duration. A bucket is 19 % wider than the one before it.
struct LatencyCounts {
  static constexpr size_t buckets = 96;  ///< from 10 µs to more than two minutes

  void add(Clock::duration duration);
  /// Returns the largest duration of a bucket in microseconds. The last bucket also has all longer ones.
  static double bound_us(size_t bucket);

  std::array<uint64_t, buckets> counts{};
};

/// The counters of one version of a model. They keep their values when the version is loaded again.
struct StatisticsValues {
  uint64_t inferences = 0;         ///< rows of successful requests
  uint64_t executions = 0;         ///< calls of the model
  uint64_t pending = 0;            ///< requests in the queue
  uint64_t last_inference_ms = 0;  ///< time of the last request since 1970; 0 if there was none
  DurationSum success{}, fail{}, queue{}, compute_input{}, compute_infer{}, compute_output{};
  uint64_t failures[failure_reasons] = {};  ///< by reason
  LatencyCounts latency{};                  ///< of successful requests, from receiving to the result

  struct Batch {
    DurationSum compute_input{}, compute_infer{}, compute_output{};
  };
  std::map<int64_t, Batch> batches{};  ///< by number of rows
};

/// Threads: thread-safe
class ModelStatistics {
 public:
  void add_success(const RequestTimes& times, int64_t rows);
  void add_failure(FailureReason reason, Clock::duration duration);
  void add_execution(int64_t rows, Clock::duration input, Clock::duration infer, Clock::duration output);
  void set_pending(uint64_t requests);
  StatisticsValues values() const;

 private:
  mutable Mutex mutex_;
  StatisticsValues values_ BELLOWS_GUARDED_BY(mutex_){};
};

/// The statistics of all models by name and version.
using AllStatistics = std::vector<std::pair<std::pair<std::string, std::string>, std::shared_ptr<ModelStatistics>>>;

/// Returns the JSON object of Triton's statistics extension.
std::string statistics_json(const AllStatistics& models);

/// Values of the whole server that are part of the metrics.
struct ServerValues {
  uint64_t connections = 0;  ///< open connections
};

/// Returns the metrics in Prometheus' text format, under Triton's names.
std::string prometheus_text(const AllStatistics& models, const ServerValues& server);

}  // namespace bellows::serve
