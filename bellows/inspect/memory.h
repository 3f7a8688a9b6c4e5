#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// What a process holds at one moment.
///
/// CPU: blocks that libtorch's CPU allocator handed out since the first call of this file (tensors, and scratch memory
/// that kernels ask of it), as the C heap rounded them up. Not counted: what was there before, oneDNN's and MKL's own
/// buffers, the C++ heap, mapped files; the resident size beside it has them all.
/// Accelerator: blocks of libtorch's caching allocator; `reserved_bytes` adds what it keeps cached.
/// Units: bytes
struct MemoryStats {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;      ///< highest since the program's start or the last reset_peak()
  int64_t allocations = 0;     ///< blocks handed out so far
  int64_t reserved_bytes = 0;  ///< taken from the device, used or cached; the CPU has no cache: current_bytes
  int64_t rss_bytes = 0;       ///< the process's resident memory on the host; 0 where /proc is missing
  int64_t peak_rss_bytes = 0;  ///< its highest value; reset_peak() starts it anew where the kernel allows

  std::string to_string() const;
};

/// Throws: c10::Error – the device has no caching allocator; another CPU allocator is in place
/// Cost:   about 20 µs (reads /proc/self/status)
/// Ref:    torch.cuda.memory_stats
MemoryStats memory_stats(c10::Device device = c10::kCPU);

/// Starts the peak anew from the present size. MemoryScopes keep their own peaks.
/// Throws: as memory_stats
/// Ref:    torch.cuda.reset_peak_memory_stats
void reset_peak(c10::Device device = c10::kCPU);

/// Measures the memory of a stretch of code: its own peak and what it left behind. Scopes nest and overlap freely.
/// Threads: all threads' allocations count, so a scope means something only if others are quiet. Make and read it on
///          any. An allocation that is made and freed in the instant in which a scope opens or is read may be missed.
/// Throws:  as memory_stats
class MemoryScope {
 public:
  explicit MemoryScope(c10::Device device = c10::kCPU);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  /// Highest size since the scope opened, all memory of the device counted.
  /// Units:    bytes
  int64_t peak_bytes() const;
  /// The same above what was there when it opened: what the stretch needed.
  int64_t peak_growth_bytes() const { return peak_bytes() - start_bytes_; }
  /// Present size less the size when it opened; negative when it freed more than it took.
  int64_t net_bytes() const;

 private:
  c10::Device device_;
  int64_t start_bytes_ = 0;
  struct Entry;
  std::unique_ptr<Entry> entry_;
};

/// Draws memory over time as a counter of a Chrome trace, while it lives.
/// CPU: one sample each time that the size has moved by `min_change_bytes`, so no peak larger than that is missed.
/// Accelerator: one sample a call of sample(); StepTracer calls it behind each operator.
/// Threads: samples from any thread
class MemoryTimeline {
 public:
  struct Options {
    c10::Device device = c10::kCPU;
    int64_t min_change_bytes = 64 << 10;
  };
  /// Params: writer – must outlive the timeline
  /// Throws: as memory_stats
  MemoryTimeline(TraceWriter& writer, const Options& options);
  explicit MemoryTimeline(TraceWriter& writer) : MemoryTimeline(writer, Options{}) {}
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  /// Writes one sample now.
  void sample();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::inspect
