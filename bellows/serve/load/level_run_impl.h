#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bellows/serve/load/arrivals.h"
#include "bellows/serve/load/load.h"
#include "bellows/serve/load/samples.h"
#include "bellows/serve/load/transport_impl.h"

namespace bellows::serve {

/// The measurement of one level: a warm-up, and windows until the last three of them are stable.
/// Threads: run() sends all requests on the calling thread
class LevelRun {
 public:
  /// Params: requests – number of requests that the transport has prepared
  ///         step     – text for LoadOptions::progress
  LevelRun(LoadTransport& transport, const LoadOptions& options, const LoadLevel& level, size_t requests,
           std::string step);
  ~LevelRun();
  LevelRun(const LevelRun&) = delete;
  LevelRun& operator=(const LevelRun&) = delete;

  LevelResult run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { warmup, measuring, draining };

  /// A connection and its current request.
  struct Slot {
    std::unique_ptr<LoadConnection> connection{};
    std::unique_ptr<boost::asio::steady_timer> pause{};  ///< after a failed connection
    bool busy = false;
    int64_t intended = 0, sent = 0;
  };
  /// The state at the end of the warm-up, and at the end of each window.
  struct Boundary {
    int64_t at = 0;
    double cpu_s = 0;
    size_t samples = 0;
    std::shared_ptr<std::optional<ServerCounters>> counters{};
  };

  bool open_loop() const { return level_.concurrency == 0; }
  int64_t now() const { return std::chrono::nanoseconds(Clock::now() - start_).count(); }
  size_t new_slot();
  void send(size_t slot, int64_t intended);
  void on_answer(size_t slot, LoadAnswer answer);
  void next_of(size_t slot, bool connected);
  void release(size_t slot);
  void record(const Slot& slot, LoadSample::End end, const std::string& error, const std::string& message);
  void schedule();
  void start_due();
  void start_or_queue(int64_t intended);
  void tick();
  void on_tick();
  void check_timeouts(int64_t time);
  void check_window(int64_t time);
  void add_boundary(int64_t time);
  void drain();
  bool drained() const;
  void finish();
  void report_progress(int64_t time) const;
  LevelResult result() const;

  LoadTransport& transport_;
  const LoadOptions& options_;
  const LoadLevel level_;
  const size_t requests_;
  const std::string step_;
  boost::asio::io_context io_{1};
  boost::asio::steady_timer tick_timer_, arrival_timer_;
  Clock::time_point start_{};
  Phase phase_ = Phase::warmup;
  Arrivals arrivals_;
  int64_t next_arrival_ = 0;
  std::vector<Slot> slots_{};
  std::vector<size_t> free_{};     ///< open loop: slots without a request
  std::deque<int64_t> waiting_{};  ///< open loop: intended starts of requests that wait for a slot
  std::vector<LoadSample> samples_{};
  std::vector<int64_t> delays_{};  ///< open loop: between intended and real start, in the order of starts
  std::vector<Boundary> boundaries_{};
  std::vector<WindowRate> windows_{};
  std::map<std::string, uint64_t> errors_{};
  std::string first_error_{};
  size_t next_request_ = 0, busy_ = 0, pending_counters_ = 0;
  int64_t drain_end_ = 0;
  bool stopped_ = false;
};

}  // namespace bellows::serve
