#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "bellows/report/trace_writer.h"

namespace bellows::data {

/// Where a loader spends its time: the first four on a sample in a worker, the others on a batch in next().
enum class LoadStage : uint8_t {
  read,       ///< Source::read: the sample's bytes
  decode,     ///< bytes to pixels, text to labels
  transform,  ///< steps on the picture
  write,      ///< normalised and put into the batch's memory
  hand_over,  ///< the filled rows become the batch's tensors
  transfer    ///< copies to a device begun
};
inline constexpr size_t kLoadStages = 6;
/// "read", "decode", "transform", "write", "hand over", "transfer".
std::string_view to_string(LoadStage stage);

/// Nanoseconds on the steady clock.
int64_t now_ns();
/// Processor time of the whole process.
int64_t process_cpu_ns();

/// A number that one thread adds to while others may look at it.
class Tally {
 public:
  void add(int64_t n) { value_.store(get() + n, std::memory_order_relaxed); }
  int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

/// Durations in four bins an octave, from 1 ns to 18 minutes; longer ones count as that long.
inline constexpr size_t kDurationBins = 160;
using DurationBins = std::array<int64_t, kDurationBins>;
size_t duration_bin(int64_t ns);
/// The duration that the share `q` of all is not above, to about 12 %. 0 when there are none.
double duration_quantile_ns(const DurationBins& bins, double q);

/// What several threads measured, added up.
struct StageSums {
  struct Stage {
    int64_t ns = 0, samples = 0;
    DurationBins bins{};
  };
  std::array<Stage, kLoadStages> stages;
  int64_t busy_ns = 0;       ///< in slices
  int64_t cpu_ns = 0;        ///< processor time of these, as far as it was looked at …
  int64_t cpu_wall_ns = 0;   ///< … in so much of busy_ns
  int64_t major_faults = 0;  ///< pages that came from the disk meanwhile
  int64_t gave_up = 0;       ///< times that the thread gave its core up, waiting for something …
  int64_t lost = 0;          ///< … and that another thread took it

  /// Share of busy_ns since `earlier` in which threads waited for a disk, a network or a lock, not for a core: an
  /// estimate.
  double blocked_share(const StageSums& earlier) const;
  int64_t samples = 0;
};

/// Measures what one thread does with samples, slice by slice.
///
/// Samples that take long (50 µs) are timed one by one, of shorter ones one in 16 or, below 5 µs, in 64, which then
/// counts for as many; of short slices (200 µs) one in four. So looking at the clock stays below 1 % of the work.
/// Cost:    about 0.3 µs a timed sample, 2 µs a slice whose processor time is looked at; 8 KiB
/// Threads: one thread measures; add_to() may be called from others meanwhile
class StageClock {
 public:
  void begin_slice();
  /// Params: samples – that it had
  void end_slice(int64_t samples);
  /// A sample begins, with LoadStage::read.
  void begin_sample();
  /// From here on the sample is in `stage`.
  void enter(LoadStage stage);
  void end_sample();
  /// Where the sample is, or was when it failed.
  LoadStage stage() const { return stage_; }
  /// A stretch that was measured elsewhere.
  void add(LoadStage stage, int64_t ns, int64_t samples);

  void add_to(StageSums& sums) const;

  /// Draws what follows as bars on the row `thread`; null ends that.
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
  int64_t stride_ = 1, turn_ = 0;  // one sample in `stride_` is timed
  bool slice_timed_ = false;
  int64_t slice_stride_ = 1, slice_turn_ = 0;  // one slice in `slice_stride_` is timed
  int64_t slice_start_ns_ = 0, mark_ns_ = 0;   // since when the slice, the stage runs
  int64_t slice_cpu_ns_ = -1, slice_faults_ = 0, slice_gave_up_ = 0,
          slice_lost_ = 0;                        // at the slice's start; -1: not looked at
  int64_t cpu_stride_ = 1, cpu_turn_ = 0;         // one timed slice in `cpu_stride_` is looked at
  std::array<int64_t, kLoadStages> sample_ns_{};  // of the sample so far; it may be in a stage more than once
  std::shared_ptr<TraceWriter> trace_;
  uint64_t row_ = 0;
};

}  // namespace bellows::data
