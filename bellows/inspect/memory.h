#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// Memory of a process at one moment.
///
/// CPU: blocks from libtorch's CPU allocator since the first call of a function in this header: tensors, and scratch
/// memory of kernels. Sizes are as rounded up by the C heap. Not included: earlier blocks, oneDNN's and MKL's own
/// buffers, the C++ heap, and mapped files. The resident size includes all of them.
/// Accelerator: blocks of libtorch's caching allocator; `reserved_bytes` also includes its cache.
/// Units: bytes
struct MemoryStats {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;      ///< highest since the start of the program or the last reset_peak()
  int64_t allocations = 0;     ///< blocks allocated so far
  int64_t reserved_bytes = 0;  ///< taken from the device, used or cached; on the CPU equal to current_bytes
  int64_t rss_bytes = 0;       ///< resident memory of the process on the host; 0 without /proc
  int64_t peak_rss_bytes = 0;  ///< its highest value; reset_peak() resets it if the kernel allows this

  std::string to_string() const;
};

/// Throws: c10::Error if the device has no caching allocator, or another CPU allocator is installed
/// Cost:   about 20 µs (reads /proc/self/status)
/// Ref:    torch.cuda.memory_stats
MemoryStats memory_stats(c10::Device device = c10::kCPU);

/// Resets the peak to the current size. MemoryScopes have their own peaks.
/// Throws: as memory_stats()
/// Ref:    torch.cuda.reset_peak_memory_stats
void reset_peak(c10::Device device = c10::kCPU);

/// Measures the memory of a code section: its peak and the memory that it leaves allocated. Scopes can nest and
/// overlap.
/// Threads: allocations of all threads count, so a scope is meaningful only if other threads allocate nothing. Create
///          and read it on any thread. An allocation that is made and freed at the moment when a scope opens or is read
///          may be missed.
/// Throws:  as memory_stats()
class MemoryScope {
 public:
  explicit MemoryScope(c10::Device device = c10::kCPU);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  /// Highest size of all memory on the device since the scope opened.
  /// Units: bytes
  int64_t peak_bytes() const;
  /// The peak relative to the size when the scope opened, that is, the memory that the section needed.
  int64_t peak_growth_bytes() const { return peak_bytes() - start_bytes_; }
  /// The current size minus the size when the scope opened; negative if the section freed more than it allocated.
  int64_t net_bytes() const;

 private:
  c10::Device device_;
  int64_t start_bytes_ = 0;
  struct Entry;
  std::unique_ptr<Entry> entry_;
};

/// While it lives, writes memory over time as a counter of a Chrome trace. On the CPU, it writes a sample whenever the
/// size has changed by `min_change_bytes`, so larger peaks are not missed. On an accelerator, it writes one sample per
/// call of sample(), which StepTracer calls after each operator.
/// Threads: samples can come from any thread
class MemoryTimeline {
 public:
  struct Options {
    c10::Device device = c10::kCPU;
    int64_t min_change_bytes = 64 << 10;
  };
  /// Params: writer – must outlive the timeline
  /// Throws: as memory_stats()
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
