#include <sys/prctl.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <ctime>
#include <span>
#include <utility>

#include "bellows/serve/load/level_run_impl.h"

namespace bellows::serve {

namespace {

namespace asio = boost::asio;
using Error = boost::system::error_code;

constexpr auto tick_distance = std::chrono::milliseconds(50);
constexpr auto pause_after_failure = std::chrono::milliseconds(20);
constexpr size_t measured_windows = 3, least_answers = 10;
constexpr int64_t longest_window = 10;  ///< times its usual length

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(1e9 * seconds);
}

double thread_cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Linux delays timers by up to 50 us to save power. That would add to the latencies of an open loop.
class ExactTimers {
 public:
  ExactTimers() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1UL); }
  ~ExactTimers() {
    if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
  }
  ExactTimers(const ExactTimers&) = delete;
  ExactTimers& operator=(const ExactTimers&) = delete;

 private:
  int before_;
};

std::optional<ServerTimes> server_times(const std::optional<ServerCounters>& before,
                                        const std::optional<ServerCounters>& after) {
  if (!before || !after || after->requests <= before->requests) return std::nullopt;
  const auto count = static_cast<double>(after->requests - before->requests);
  const auto calls = static_cast<double>(after->executions - before->executions);
  const auto rows = static_cast<double>(after->rows - before->rows);
  return ServerTimes{.requests = after->requests - before->requests,
                     .queue_s = (after->queue_s - before->queue_s) / count,
                     .input_s = (after->input_s - before->input_s) / count,
                     .compute_s = (after->compute_s - before->compute_s) / count,
                     .output_s = (after->output_s - before->output_s) / count,
                     .batch_size = calls > 0 ? rows / calls : 0};
}

}  // namespace

LevelRun::LevelRun(LoadTransport& transport, const LoadOptions& options, const LoadLevel& level, size_t requests,
                   std::string step)
    : transport_(transport),
      options_(options),
      level_(level),
      requests_(requests),
      step_(std::move(step)),
      tick_timer_(io_),
      arrival_timer_(io_),
      arrivals_(level.concurrency > 0 ? 1 : level.rate, options.poisson, options.seed) {}

LevelRun::~LevelRun() {
  for (const Slot& slot : slots_) slot.connection->abort();
}

LevelResult LevelRun::run() {
  const ExactTimers exact;
  start_ = Clock::now();
  if (open_loop()) {
    next_arrival_ = arrivals_.next();
    schedule();
  } else {
    for (int64_t i = 0; i < level_.concurrency; ++i) send(new_slot(), 0);
  }
  tick();
  io_.run();
  return result();
}

size_t LevelRun::new_slot() {
  slots_.push_back({.connection = transport_.connect(io_), .pause = std::make_unique<asio::steady_timer>(io_)});
  return slots_.size() - 1;
}

void LevelRun::send(size_t slot, int64_t intended) {
  Slot& one = slots_[slot];
  one.busy = true;
  one.sent = now();
  one.intended = open_loop() ? intended : one.sent;
  if (open_loop()) delays_.push_back(one.sent - intended);
  ++busy_;
  const size_t request = next_request_;
  next_request_ = next_request_ + 1 == requests_ ? 0 : next_request_ + 1;
  one.connection->send(request, [this, slot](LoadAnswer answer) { on_answer(slot, std::move(answer)); });
}

void LevelRun::on_answer(size_t slot, LoadAnswer answer) {
  record(slots_[slot], answer.ok ? LoadSample::End::ok : LoadSample::End::failed, answer.error, answer.message);
  next_of(slot, answer.connected);
}

void LevelRun::record(const Slot& slot, LoadSample::End end, const std::string& error, const std::string& message) {
  samples_.push_back({.intended = slot.intended, .done = now(), .end = end});
  if (end == LoadSample::End::ok) return;
  ++errors_[error];
  if (first_error_.empty()) first_error_ = error + (message.empty() || message == error ? "" : ": " + message);
}

/// Starts the next request of a slot.
void LevelRun::next_of(size_t slot, bool connected) {
  slots_[slot].busy = false;
  --busy_;
  if (open_loop()) return release(slot);
  if (phase_ == Phase::draining) return;
  if (connected) return send(slot, 0);
  slots_[slot].pause->expires_after(pause_after_failure);
  slots_[slot].pause->async_wait([this, slot](Error error) {
    if (!error && phase_ != Phase::draining) send(slot, 0);
  });
}

void LevelRun::release(size_t slot) {
  if (waiting_.empty()) {
    free_.push_back(slot);
    return;
  }
  const int64_t intended = waiting_.front();
  waiting_.pop_front();
  send(slot, intended);
}

void LevelRun::schedule() {
  arrival_timer_.expires_at(start_ + std::chrono::nanoseconds(next_arrival_));
  arrival_timer_.async_wait([this](Error error) {
    if (error || phase_ == Phase::draining) return;
    start_due();
    schedule();
  });
}

void LevelRun::start_due() {
  for (const int64_t time = now(); next_arrival_ <= time; next_arrival_ = arrivals_.next())
    start_or_queue(next_arrival_);
}

void LevelRun::start_or_queue(int64_t intended) {
  if (!free_.empty()) {
    const size_t slot = free_.back();
    free_.pop_back();
    send(slot, intended);
  } else if (std::ssize(slots_) < options_.connections) {
    send(new_slot(), intended);
  } else {
    waiting_.push_back(intended);
  }
}

void LevelRun::tick() {
  auto next = Clock::now() + tick_distance;
  const int64_t boundary =
      boundaries_.empty() ? nanoseconds(options_.warmup_s) : boundaries_.back().at + nanoseconds(options_.window_s);
  const auto planned = start_ + std::chrono::nanoseconds(boundary);
  if (phase_ != Phase::draining && planned > Clock::now()) next = std::min(next, planned);
  tick_timer_.expires_at(next);
  tick_timer_.async_wait([this](Error error) {
    if (!error) on_tick();
  });
}

void LevelRun::on_tick() {
  const int64_t time = now();
  check_timeouts(time);
  stopped_ = stopped_ || (options_.stop && options_.stop());
  if (phase_ == Phase::warmup && (time >= nanoseconds(options_.warmup_s) || stopped_)) {
    phase_ = Phase::measuring;
    add_boundary(time);
  } else if (phase_ == Phase::measuring) {
    check_window(time);
  }
  if (phase_ == Phase::draining && (drained() || time >= drain_end_ || stopped_)) return finish();
  report_progress(time);
  tick();
}

void LevelRun::check_timeouts(int64_t time) {
  const int64_t timeout = nanoseconds(options_.timeout_s);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].busy || time - slots_[slot].sent < timeout) continue;
    slots_[slot].connection->abort();
    record(slots_[slot], LoadSample::End::unanswered, "timeout", "");
    next_of(slot, /*connected=*/true);
  }
}

void LevelRun::check_window(int64_t time) {
  const Boundary& begin = boundaries_.back();
  const int64_t length = nanoseconds(options_.window_s);
  const size_t answers = samples_.size() - begin.samples;
  const bool complete = time >= begin.at + length && answers >= least_answers;
  if (!complete && !stopped_ && time < begin.at + longest_window * length) return;
  windows_.push_back(window_rate(std::span(samples_).subspan(begin.samples), begin.at, time));
  add_boundary(time);
  const bool enough = is_stable(windows_, options_.stability) || std::ssize(windows_) >= options_.max_windows;
  if (enough || answers == 0 || stopped_) drain();
}

void LevelRun::add_boundary(int64_t time) {
  const auto counters = std::make_shared<std::optional<ServerCounters>>();
  boundaries_.push_back({.at = time, .cpu_s = thread_cpu_s(), .samples = samples_.size(), .counters = counters});
  ++pending_counters_;
  transport_.counters(io_, [this, counters](std::optional<ServerCounters> found) {
    *counters = found;
    --pending_counters_;
  });
}

/// Starts no further requests, and waits for the answers to those of the measured time.
void LevelRun::drain() {
  phase_ = Phase::draining;
  arrival_timer_.cancel();
  drain_end_ = now() + nanoseconds(options_.timeout_s);
  const int64_t end = boundaries_.back().at;
  if (!open_loop()) return;
  // Requests that are due at the end of the window were perhaps not started yet.
  for (; next_arrival_ < end; next_arrival_ = arrivals_.next()) start_or_queue(next_arrival_);
}

bool LevelRun::drained() const {
  return busy_ == 0 && waiting_.empty() && pending_counters_ == 0;
}

void LevelRun::finish() {
  const int64_t time = now();
  for (const Slot& slot : slots_) {
    if (slot.busy && open_loop()) record(slot, LoadSample::End::unanswered, "unanswered", "");
    slot.connection->abort();
  }
  for (const int64_t intended : waiting_) {
    samples_.push_back({.intended = intended, .done = time, .end = LoadSample::End::unanswered});
    ++errors_["not sent"];
  }
  io_.stop();
}

void LevelRun::report_progress(int64_t time) const {
  if (!options_.progress) return;
  char text[128];
  const double seconds = 1e-9 * static_cast<double>(time);
  const char* phase = phase_ == Phase::warmup     ? "warm-up"
                      : phase_ == Phase::draining ? "waiting for answers"
                                                  : "measuring";
  std::snprintf(
      text, sizeof text, "%s, %.0f s, %.0f requests/s", phase, seconds,
      windows_.empty() ? static_cast<double>(samples_.size()) / std::max(seconds, 1e-3) : windows_.back().rate);
  options_.progress(step_, text);
}

LevelResult LevelRun::result() const {
  const size_t last = boundaries_.size() - 1, first = last - std::min(measured_windows, last);
  const Boundary &begin = boundaries_[first], &end = boundaries_[last];
  LevelResult result = summarize_level(samples_, begin.at, end.at, open_loop());
  result.level = level_;
  result.stable = is_stable(windows_, options_.stability);
  result.errors = errors_;
  result.first_error = first_error_;
  for (const WindowRate& window : windows_) result.window_rates.push_back(window.rate);
  result.server = server_times(*begin.counters, *end.counters);
  const auto answers = static_cast<double>(end.samples - begin.samples);
  if (answers > 0) result.client_s = (end.cpu_s - begin.cpu_s) / answers;
  if (result.seconds > 0) result.client_share = (end.cpu_s - begin.cpu_s) / result.seconds;
  std::vector<int64_t> delays = delays_;
  std::ranges::sort(delays);
  result.delay_p99_s = 1e-9 * static_cast<double>(percentile(delays, 0.99));
  return result;
}

}  // namespace bellows::serve
