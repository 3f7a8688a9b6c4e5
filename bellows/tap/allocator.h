#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bellows::tap {

/// One allocation or deallocation of libtorch's CPU allocator.
struct AllocationEvent {
  const void* address = nullptr;
  int64_t bytes = 0;          ///< size of the block; negative if the block was freed
  int64_t current_bytes = 0;  ///< total size of all counted blocks after this event
};

/// Receives an event for each CPU allocation and deallocation of the process.
/// Threads: called concurrently, on the thread that allocates or frees. Blocks that the listener itself allocates are
///          counted but not reported. The listener must not add or remove listeners
class AllocationListener {
 public:
  virtual ~AllocationListener() = default;
  /// Exceptions that this function throws are ignored, because freeing memory must not fail.
  virtual void on_allocation(const AllocationEvent& event) = 0;
};

/// Registers a listener for the whole process while the guard exists. The constructor installs the counting allocator.
/// When the destructor returns, no call of the listener is in progress.
class AllocationGuard {
 public:
  /// Throws: c10::ValueError if `listener` is null; c10::Error if install_cpu_allocator() throws it
  explicit AllocationGuard(std::shared_ptr<AllocationListener> listener);
  ~AllocationGuard();
  AllocationGuard(const AllocationGuard&) = delete;
  AllocationGuard& operator=(const AllocationGuard&) = delete;

 private:
  std::shared_ptr<AllocationListener> listener_;
};

/// Counters of the CPU allocator since install_cpu_allocator(). Bytes are usable block sizes (malloc_usable_size),
/// which are rounded up from the requested sizes.
struct AllocationCounters {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t allocations = 0;
  int64_t frees = 0;
};

/// Permanently replaces libtorch's CPU allocator with a counting allocator. Both allocators use c10::alloc_cpu.
/// - Counted: all blocks that c10's CPU allocator allocates after this call, for tensors and for scratch memory of
///   kernels.
/// - Not counted: earlier blocks, internal buffers of oneDNN and MKL, and the C++ heap. The resident set size (RSS) of
///   the process includes these, so report it, too.
/// Cost:    a few atomic operations per allocation; measured by bench/taps
/// Threads: thread-safe; further calls are cheap and do nothing
/// Throws:  c10::Error if the current CPU allocator is not libtorch's own
void install_cpu_allocator();
bool cpu_allocator_installed();

/// Threads: thread-safe. If other threads allocate at the same time, the four counters may be inconsistent with each
///          other
AllocationCounters cpu_allocation_counters();
/// Resets the peak to the current size.
void reset_cpu_allocation_peak();

}  // namespace bellows::tap
