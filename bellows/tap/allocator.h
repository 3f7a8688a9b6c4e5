#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bellows::tap {

/// One allocation or free of libtorch's CPU allocator.
struct AllocationEvent {
  const void* address = nullptr;
  int64_t bytes = 0;          ///< size of the block; negative if the block was freed
  int64_t current_bytes = 0;  ///< total size of all counted blocks after this event
};

/// Receives every CPU allocation and free of the whole process.
/// Threads: called concurrently, on the thread that allocates or frees. Blocks allocated inside the call are counted
///          but not reported. The listener must not add or remove listeners.
class AllocationListener {
 public:
  virtual ~AllocationListener() = default;
  /// Exceptions are dropped, because a free cannot fail.
  virtual void on_allocation(const AllocationEvent& event) = 0;
};

/// Registers a listener for the whole process while the guard lives. Installs the counting allocator.
/// After the destructor returns, no call of the listener is in progress.
class AllocationGuard {
 public:
  /// Throws: c10::ValueError if `listener` is null; c10::Error as install_cpu_allocator()
  explicit AllocationGuard(std::shared_ptr<AllocationListener> listener);
  ~AllocationGuard();
  AllocationGuard(const AllocationGuard&) = delete;
  AllocationGuard& operator=(const AllocationGuard&) = delete;

 private:
  std::shared_ptr<AllocationListener> listener_;
};

/// Counters of the CPU allocator since install_cpu_allocator().
/// Units: bytes of usable block size (malloc_usable_size), which is the requested size rounded up
struct AllocationCounters {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t allocations = 0;
  int64_t frees = 0;
};

/// Permanently replaces libtorch's CPU allocator by a counting one. Both allocate with c10::alloc_cpu.
/// Counted:     blocks from c10's CPU allocator since this call: tensors and scratch memory of kernels
/// Not counted: earlier blocks, the own buffers of oneDNN and MKL, and the C++ heap. Report the RSS as well.
/// Cost:        a few atomic operations per allocation; figures: bench/taps
/// Threads:     safe; further calls do nothing and are cheap
/// Throws:      c10::Error if another CPU allocator than libtorch's is installed
void install_cpu_allocator();
bool cpu_allocator_installed();

/// Threads: safe; the four counters are not one snapshot while other threads allocate
AllocationCounters cpu_allocation_counters();
/// Sets the peak to the current size.
void reset_cpu_allocation_peak();

}  // namespace bellows::tap
