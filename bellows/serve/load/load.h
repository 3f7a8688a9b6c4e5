#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bellows/serve/load/load_report.h"

namespace bellows::serve {

struct LoadOptions {
  std::string url = "127.0.0.1:8000";  ///< "http://HOST:PORT" or "HOST:PORT"
  std::string model{}, version{};      ///< version "": the newest one
  /// Further headers of each request, such as {"Authorization", "Bearer …"}.
  std::vector<std::pair<std::string, std::string>> headers{};

  // The load. The levels run one after another.
  std::vector<LoadLevel> levels{{.concurrency = 1}};
  bool poisson = false;       ///< open loop: random distances between requests (Poisson process), instead of equal ones
  int64_t connections = 256;  ///< open loop: the largest number of connections
  uint64_t seed = 1;          ///< of random values and distances

  // The requests.
  bool json = false;       ///< tensors as JSON numbers, instead of binary
  int64_t batch_size = 1;  ///< size of axis 0 of each input, if it may vary
  std::map<std::string, std::vector<int64_t>>
      shapes{};               ///< complete sizes of inputs; required for other axes that vary
  std::string data_file{};    ///< file with values, see docs/deploy.md; "": random values
  int64_t vocabulary = 1000;  ///< random integers are from 0 to vocabulary - 1

  // The measurement, in seconds.
  double warmup_s = 1;
  double window_s = 1;           ///< a window is longer if it has fewer than ten requests
  double stability = 0.1;        ///< largest relative difference between windows that counts as stable
  int64_t max_windows = 10;      ///< a level ends after three stable windows, or after this number
  double timeout_s = 30;         ///< of a request
  std::function<bool()> stop{};  ///< the measurement ends early if this returns true
  /// Called several times per second with the current step and its state.
  std::function<void(const std::string& step, const std::string& state)> progress{};
};

/// Sends requests to a server for the Open Inference Protocol over HTTP, and measures latencies and throughput.
///
/// In an open loop, requests have a schedule that does not depend on the server. The latency of a request counts from its
/// intended start, so it includes the time in which the client waits for a free connection. A server that stops for a
/// second therefore has high latencies for all requests of this second (no coordinated omission).
/// Cost:    one thread, and 24 bytes per request
/// Threads: the calling thread sends all requests; not thread-safe for functions of `options`
/// Throws:  c10::ValueError if the server cannot be reached, if it has no such model, or if an option is invalid.
///          c10::NotImplementedError in builds without Boost
LoadReport measure_load(const LoadOptions& options);

}  // namespace bellows::serve
