#pragma once

#include <c10/core/Device.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

/// The memory of a process at one moment.
///
/// On the CPU, the statistics count the blocks that libtorch's CPU allocator has allocated since the first call of a
/// function in this header. These blocks are tensors and the scratch memory of kernels. Sizes are rounded up in the
/// same way as in the C heap. Earlier blocks, internal buffers of oneDNN and MKL, the C++ heap, and mapped files are
/// not counted. The resident size includes all of these. On an accelerator, the statistics count the blocks of
/// libtorch's caching allocator. `reserved_bytes` also includes the allocator's cache.
/// Units: bytes
struct MemoryStats {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;   ///< highest value since the program started or reset_peak() was last called
  int64_t allocations = 0;  ///< number of blocks allocated so far
  /// Bytes that were taken from the device and are in use or cached. On the CPU, equal to current_bytes.
  int64_t reserved_bytes = 0;
  int64_t rss_bytes = 0;  ///< resident memory of the process on the host; 0 if /proc does not exist
  /// Highest resident memory. reset_peak() resets it if the kernel allows this.
  int64_t peak_rss_bytes = 0;

  std::string to_string() const;
};

/// Throws: c10::Error if the device has no caching allocator, or if a different CPU allocator is installed
/// Cost:   about 20 µs, because it reads /proc/self/status
/// Ref:    torch.cuda.memory_stats
MemoryStats memory_stats(c10::Device device = c10::kCPU);
/// Returns the highest resident memory of another process in bytes, or 0 if the process has ended.
int64_t peak_rss_of(pid_t process);

/// Sets the peak to the current size. The peaks of MemoryScopes do not change.
/// Throws: like memory_stats()
/// Ref:    torch.cuda.reset_peak_memory_stats
void reset_peak(c10::Device device = c10::kCPU);

/// Measures the memory of a code section: its peak, and the memory that the section leaves allocated. Scopes can nest
/// and overlap.
/// Threads: allocations of all threads count, so a scope is meaningful only if other threads do not allocate. You can
///          create and read a scope on any thread. If a block is allocated and freed at the moment when a scope opens
///          or is read, it may not be counted
/// Throws:  like memory_stats()
class MemoryScope {
 public:
  explicit MemoryScope(c10::Device device = c10::kCPU);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  /// Returns the peak of all allocated memory on the device since the scope opened.
  /// Units: bytes
  int64_t peak_bytes() const;
  /// Returns the peak minus the size when the scope opened. This is the memory that the section needed.
  int64_t peak_growth_bytes() const { return peak_bytes() - start_bytes_; }
  /// Returns the current size minus the size when the scope opened. It is negative if the section freed more than it
  /// allocated.
  int64_t net_bytes() const;

 private:
  c10::Device device_;
  int64_t start_bytes_ = 0;
  struct Entry;
  std::unique_ptr<Entry> entry_;
};

/// While this object exists, it writes the memory size over time as a counter of a Chrome trace. On the CPU, it writes
/// a sample whenever the size has changed by `min_change_bytes`, so it does not miss larger peaks. On an accelerator,
/// it writes a sample for each call of sample(). StepTracer calls sample() after each operator.
/// Threads: samples can come from any thread
class MemoryTimeline {
 public:
  struct Options {
    c10::Device device = c10::kCPU;
    int64_t min_change_bytes = 64 << 10;
  };
  /// Params: writer – writer of the trace; must outlive the timeline
  /// Throws: like memory_stats()
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
