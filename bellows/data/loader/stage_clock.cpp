#include "bellows/data/loader/stage_clock.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

namespace bellows::data {

namespace {

constexpr int64_t kShortSampleNs = 50'000, kShortStride = 16;
constexpr int64_t kVeryShortSampleNs = 5'000, kVeryShortStride = 64;
constexpr int64_t kShortSliceNs = 200'000, kShortSliceStride = 4, kShortCpuStride = 16;

int64_t nanoseconds(const timeval& time) {
  return (static_cast<int64_t>(time.tv_sec) * 1'000'000 + time.tv_usec) * 1000;
}

int64_t cpu_ns_of(const rusage& usage) {
  return nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime);
}

}  // namespace

std::string_view to_string(LoadStage stage) {
  static constexpr std::string_view words[] = {"read", "decode", "transform", "write", "hand over", "transfer"};
  return words[static_cast<size_t>(stage)];
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t process_cpu_ns() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return cpu_ns_of(usage);
}

size_t duration_bin(int64_t ns) {
  if (ns < 4) return ns > 0 ? static_cast<size_t>(ns) : 0;
  const auto value = static_cast<uint64_t>(ns);
  const auto octave = static_cast<size_t>(std::bit_width(value)) - 1;
  return std::min(4 * octave + ((value >> (octave - 2)) & 3), kDurationBins - 1);
}

double duration_quantile_ns(const DurationBins& bins, double q) {
  double all = 0;
  for (int64_t count : bins) all += static_cast<double>(count);
  double below = 0;
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    below += static_cast<double>(bins[bin]);
    if (below == 0 || below < q * all) continue;
    if (bin < 8) return static_cast<double>(bin);
    const double quarter = std::ldexp(0.25, static_cast<int>(bin / 4));
    return (4.5 + static_cast<double>(bin % 4)) * quarter;  // the bin's middle
  }
  return 0;
}

double StageSums::blocked_share(const StageSums& earlier) const {
  const auto looked_at = static_cast<double>(cpu_wall_ns - earlier.cpu_wall_ns);
  const auto waits = static_cast<double>(gave_up - earlier.gave_up), losses = static_cast<double>(lost - earlier.lost);
  if (looked_at <= 0 || waits <= 0) return 0;
  const double off_core = 1 - std::min(1.0, static_cast<double>(cpu_ns - earlier.cpu_ns) / looked_at);
  return off_core * waits / (waits + losses);
}

void StageClock::begin_slice() {
  slice_timed_ = --slice_turn_ <= 0;
  if (!slice_timed_) return;
  slice_turn_ = slice_stride_;
  slice_cpu_ns_ = -1;
  if (--cpu_turn_ <= 0) {
    cpu_turn_ = cpu_stride_;
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    slice_cpu_ns_ = cpu_ns_of(usage);
    slice_faults_ = usage.ru_majflt;
    slice_gave_up_ = usage.ru_nvcsw;
    slice_lost_ = usage.ru_nivcsw;
  }
  slice_start_ns_ = now_ns();
}

void StageClock::end_slice(int64_t samples) {
  samples_.add(samples);
  if (!slice_timed_) return;
  const int64_t took = now_ns() - slice_start_ns_;
  busy_ns_.add(took * slice_stride_);
  if (slice_cpu_ns_ >= 0) look_at_processor_time(took);
  const bool short_slice = took < kShortSliceNs;
  stride_ = took < kVeryShortSampleNs * samples ? kVeryShortStride : took < kShortSampleNs * samples ? kShortStride : 1;
  slice_stride_ = short_slice ? kShortSliceStride : 1;
  cpu_stride_ = short_slice ? kShortCpuStride : 1;
  turn_ = std::min(turn_, stride_);
  slice_turn_ = std::min(slice_turn_, slice_stride_);
  cpu_turn_ = std::min(cpu_turn_, cpu_stride_);
}

void StageClock::look_at_processor_time(int64_t took) {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  cpu_ns_.add(cpu_ns_of(usage) - slice_cpu_ns_);
  cpu_wall_ns_.add(took);
  major_faults_.add((usage.ru_majflt - slice_faults_) * cpu_stride_ * slice_stride_);
  gave_up_.add(usage.ru_nvcsw - slice_gave_up_);
  lost_.add(usage.ru_nivcsw - slice_lost_);
}

void StageClock::begin_sample() {
  stage_ = LoadStage::read;
  timed_ = --turn_ <= 0;
  if (!timed_) return;
  turn_ = stride_;
  sample_ns_.fill(0);
  mark_ns_ = now_ns();
}

void StageClock::close_stage(int64_t now) {
  sample_ns_[static_cast<size_t>(stage_)] += now - mark_ns_;
  if (trace_) {
    const double start_us = static_cast<double>(mark_ns_) / 1e3;
    trace_->add(
        {std::string(to_string(stage_)), "data", start_us, static_cast<double>(now - mark_ns_) / 1e3, row_, ""});
  }
  mark_ns_ = now;
}

void StageClock::enter(LoadStage stage) {
  if (timed_) close_stage(now_ns());
  stage_ = stage;
}

void StageClock::end_sample() {
  if (!timed_) return;
  timed_ = false;
  close_stage(now_ns());
  for (size_t stage = 0; stage < kLoadStages; ++stage) {
    if (sample_ns_[stage] > 0) add(static_cast<LoadStage>(stage), sample_ns_[stage] * stride_, stride_);
  }
}

void StageClock::add(LoadStage stage, int64_t ns, int64_t samples) {
  Totals& totals = totals_[static_cast<size_t>(stage)];
  totals.ns.add(ns);
  totals.samples.add(samples);
  if (samples > 0) totals.bins[duration_bin(ns / samples)].add(samples);
}

void StageClock::add_to(StageSums& sums) const {
  for (size_t i = 0; i < kLoadStages; ++i) {
    sums.stages[i].ns += totals_[i].ns.get();
    sums.stages[i].samples += totals_[i].samples.get();
    for (size_t bin = 0; bin < kDurationBins; ++bin) sums.stages[i].bins[bin] += totals_[i].bins[bin].get();
  }
  sums.busy_ns += busy_ns_.get();
  sums.cpu_ns += cpu_ns_.get();
  sums.cpu_wall_ns += cpu_wall_ns_.get();
  sums.major_faults += major_faults_.get();
  sums.gave_up += gave_up_.get();
  sums.lost += lost_.get();
  sums.samples += samples_.get();
}

void StageClock::trace_into(std::shared_ptr<TraceWriter> writer, uint64_t thread) {
  trace_ = std::move(writer);
  row_ = thread;
}

}  // namespace bellows::data
