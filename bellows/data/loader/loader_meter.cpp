#include "bellows/data/loader/loader_meter.h"

#include <algorithm>

namespace bellows::data {

namespace {

constexpr size_t kQueuePoints = 128;
constexpr int64_t kWindowNs = 100'000'000;

double in_seconds(int64_t ns) {
  return 1e-9 * static_cast<double>(ns);
}

}  // namespace

void LoaderMeter::start(int64_t began_ns) {
  const int64_t now = now_ns();
  if (origin_ns_ == 0) {
    origin_ns_ = began_ns;
    queue_.reserve(kQueuePoints);
  }
  ++epochs_;
  epoch_wait_ns_ = epoch_ns_ = now - began_ns;
  wait_ns_ += now - began_ns;
  first_wait_ns_ += now - began_ns;
  run_ns_ += now - began_ns;
  mark_ns_ = now;
  cpu_mark_ns_ = process_cpu_ns();
  cpu_mark_run_ns_ = run_ns_;
  open_ = first_ = true;
}

void LoaderMeter::enter(int64_t ready) {
  entered_ns_ = now_ns();
  if (!open_) mark_ns_ = entered_ns_;
  model_ns_ += entered_ns_ - mark_ns_;
  look_at_queue(ready);
}

void LoaderMeter::look_at_queue(int64_t ready) {
  ready_sum_ += static_cast<double>(ready);
  if (looks_++ % looks_between_points_ != 0) return;
  if (queue_.size() == kQueuePoints) {
    for (size_t i = 0; i < kQueuePoints / 2; ++i) queue_[i] = queue_[2 * i];
    queue_.resize(kQueuePoints / 2);
    looks_between_points_ *= 2;
  }
  queue_.push_back({in_seconds(entered_ns_ - origin_ns_), static_cast<double>(ready)});
}

void LoaderMeter::taken(int64_t taken_ns, int64_t completed_ns) {
  const int64_t waited = std::max<int64_t>(0, taken_ns - entered_ns_);
  wait_ns_ += waited;
  epoch_wait_ns_ += waited;
  if (first_) first_wait_ns_ += waited;
  first_ = false;
  if (completed_ns > 0 && completed_ns < entered_ns_) ready_ns_ += entered_ns_ - completed_ns;
}

void LoaderMeter::leave(int64_t samples, int64_t threads) {
  const int64_t now = now_ns(), passed = now - mark_ns_;
  run_ns_ += passed;
  epoch_ns_ += passed;
  thread_ns_ += passed * threads;
  mark_ns_ = now;
  if (samples >= 0) {
    ++batches_;
    samples_ += samples;
    if (batches_ % 16 != 4) return;  // it is a system call
  } else {
    open_ = false;
  }
  look_at_processor_time();
}

void LoaderMeter::look_at_processor_time() {
  const int64_t cpu = process_cpu_ns();
  process_cpu_ns_ += cpu - cpu_mark_ns_;
  cpu_wall_ns_ += run_ns_ - cpu_mark_run_ns_;
  cpu_mark_ns_ = cpu;
  cpu_mark_run_ns_ = run_ns_;
}

bool LoaderMeter::take_window(BudgetWindow& window) {
  if (run_ns_ - window_.run_ns < kWindowNs) return false;
  const Totals now{run_ns_, wait_ns_ - first_wait_ns_, process_cpu_ns(), samples_};
  window.seconds = in_seconds(now.run_ns - window_.run_ns);
  window.wait_s = in_seconds(now.wait_ns - window_.wait_ns);
  window.process_cpu_s = in_seconds(now.cpu_ns - window_.cpu_ns);
  window.samples = now.samples - window_.samples;
  const bool first = window_.run_ns == 0;  // this window started before the loader did
  window_ = now;
  return !first;
}

double LoaderMeter::wait_share() const {
  return epoch_ns_ > 0 ? static_cast<double>(epoch_wait_ns_) / static_cast<double>(epoch_ns_) : 0;
}

void LoaderMeter::fill(LoaderReport& report) const {
  report.seconds = in_seconds(run_ns_);
  report.epochs = epochs_;
  report.batches = batches_;
  report.samples = samples_;
  report.wait_s = in_seconds(wait_ns_);
  report.first_wait_s = in_seconds(first_wait_ns_);
  report.model_s = in_seconds(model_ns_);
  report.ready_s = in_seconds(ready_ns_);
  report.mean_ready = looks_ > 0 ? ready_sum_ / static_cast<double>(looks_) : 0;
  report.queue = queue_;
  report.mean_threads = run_ns_ > 0 ? static_cast<double>(thread_ns_) / static_cast<double>(run_ns_) : 0;
  const double part = run_ns_ > 0 ? static_cast<double>(cpu_wall_ns_) / static_cast<double>(run_ns_) : 0;
  report.process_cpu_s = part > 0 ? in_seconds(process_cpu_ns_) / part : 0;
}

void fill(LoaderReport& report, const StageSums& sums) {
  for (size_t i = 0; i < kLoadStages; ++i) {
    const StageSums::Stage& stage = sums.stages[i];
    const double mean_ns = stage.samples > 0 ? static_cast<double>(stage.ns) / static_cast<double>(stage.samples) : 0;
    report.stages[i] = {1e-9 * static_cast<double>(stage.ns), 1e-3 * mean_ns,
                        1e-3 * duration_quantile_ns(stage.bins, 0.95)};
  }
  report.busy_s = 1e-9 * static_cast<double>(sums.busy_ns);
  report.major_faults = sums.major_faults;
  report.blocked_share = sums.blocked_share({});
  if (sums.cpu_wall_ns > 0)
    report.cpu_share = std::min(1.0, static_cast<double>(sums.cpu_ns) / static_cast<double>(sums.cpu_wall_ns));
}

}  // namespace bellows::data
