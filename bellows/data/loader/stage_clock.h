#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "bellows/report/trace_writer.h"

namespace bellows::data {

/// The stages of a loader. The first four stages process a sample in a worker. The others process a batch in next().
enum class LoadStage : uint8_t {
  read,       ///< reads the bytes of the sample (Source::read)
  decode,     ///< decodes an image to pixels, or a text to a label
  transform,  ///< runs the transforms of the image
  write,      ///< normalizes the image and writes it into the batch's memory
  hand_over,  ///< creates the tensors of the batch from the filled rows
  transfer    ///< starts the copies to a device
};
inline constexpr size_t kLoadStages = 6;
/// Returns "read", "decode", "transform", "write", "hand over" or "transfer".
std::string_view to_string(LoadStage stage);

/// Returns the time of the steady clock in nanoseconds.
int64_t now_ns();
/// Returns the CPU time of the whole process in nanoseconds.
int64_t process_cpu_ns();

/// A counter that one thread increments while other threads may read it.
class Tally {
 public:
  void add(int64_t n) { value_.store(get() + n, std::memory_order_relaxed); }
  int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

/// A histogram of durations with four bins per octave, from 1 ns to 18 minutes. Longer durations go into the last bin.
inline constexpr size_t kDurationBins = 160;
using DurationBins = std::array<int64_t, kDurationBins>;
size_t duration_bin(int64_t ns);
/// Returns the `q` quantile of the durations, within about 12 %, or 0 if there are none.
double duration_quantile_ns(const DurationBins& bins, double q);

/// The sums of the measurements of several threads. A slice is the part of a batch that one worker fills at a time.
struct StageSums {
  struct Stage {
    int64_t ns = 0, samples = 0;
    DurationBins bins{};
  };
  std::array<Stage, kLoadStages> stages;
  int64_t busy_ns = 0;       ///< time spent on slices
  int64_t cpu_ns = 0;        ///< CPU time of the slices in which it was measured
  int64_t cpu_wall_ns = 0;   ///< wall time of those slices, which is a part of busy_ns
  int64_t major_faults = 0;  ///< number of pages that were read from the disk while slices were filled
  int64_t gave_up = 0;       ///< number of voluntary context switches, which occur when a thread waits
  int64_t lost = 0;          ///< number of involuntary context switches

  /// Returns the share of busy_ns since the measurement `earlier` in which threads waited for a disk, a network or a
  /// lock, but not for a core. The result is an estimate.
  double blocked_share(const StageSums& earlier) const;
  int64_t samples = 0;
};

/// Measures the time that one thread spends on samples, slice by slice.
///
/// Samples that take at least 50 µs are timed individually. Of shorter samples, one in 16 is timed (one in 64 below
/// 5 µs) and represents the others. Of slices shorter than 200 µs, one in four is timed. Therefore, timing adds less
/// than 1 % to the work.
/// Cost:    about 0.3 µs per timed sample and 2 µs per slice whose CPU time is measured; 8 KiB of memory
/// Threads: one thread measures; other threads may call add_to() at the same time
class StageClock {
 public:
  void begin_slice();
  /// Params: samples – number of samples in the slice
  void end_slice(int64_t samples);
  /// Starts a sample with LoadStage::read.
  void begin_sample();
  /// Starts the next stage of the sample.
  void enter(LoadStage stage);
  void end_sample();
  /// Returns the current stage of the sample, or the stage that failed.
  LoadStage stage() const { return stage_; }
  /// Adds a duration that was measured elsewhere.
  void add(LoadStage stage, int64_t ns, int64_t samples);

  void add_to(StageSums& sums) const;

  /// Starts recording the stages in the row `thread` of a trace. If `writer` is null, ends the recording.
  void trace_into(std::shared_ptr<TraceWriter> writer, uint64_t thread);
  TraceWriter* trace() const { return trace_.get(); }
  uint64_t trace_row() const { return row_; }

 private:
  void close_stage(int64_t now);
  void look_at_processor_time(int64_t took);

  struct Totals {
    Tally ns, samples;
    std::array<Tally, kDurationBins> bins;
  };
  std::array<Totals, kLoadStages> totals_;
  Tally busy_ns_, cpu_ns_, cpu_wall_ns_, major_faults_, gave_up_, lost_, samples_;

  LoadStage stage_ = LoadStage::read;
  bool timed_ = false;
  int64_t stride_ = 1, turn_ = 0;  // one of `stride_` samples is timed
  bool slice_timed_ = false;
  int64_t slice_stride_ = 1, slice_turn_ = 0;  // one of `slice_stride_` slices is timed
  int64_t slice_start_ns_ = 0, mark_ns_ = 0;   // start times of the slice and of the stage
  int64_t slice_cpu_ns_ = -1, slice_faults_ = 0, slice_gave_up_ = 0,
          slice_lost_ = 0;                        // values at the start of the slice; -1: not measured
  int64_t cpu_stride_ = 1, cpu_turn_ = 0;         // CPU time is measured in one of `cpu_stride_` timed slices
  std::array<int64_t, kLoadStages> sample_ns_{};  // times of the current sample; a stage may occur more than once
  std::shared_ptr<TraceWriter> trace_;
  uint64_t row_ = 0;
};

}  // namespace bellows::data
