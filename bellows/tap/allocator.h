#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bellows::tap {

/// One allocation or free of libtorch's CPU allocator.
struct AllocationEvent {
  const void* address = nullptr;
  int64_t bytes = 0;          ///< size of the block; negative when it is freed
  int64_t current_bytes = 0;  ///< of all counted blocks, after this event
};

/// Gets every CPU allocation and free of the whole process.
/// Threads: called on the thread that allocates or frees, concurrently. Blocks allocated inside the call are counted
///          but not reported. It must not add or remove listeners.
class AllocationListener {
 public:
  virtual ~AllocationListener() = default;
  /// An exception that leaves it is dropped: a free cannot fail.
  virtual void on_allocation(const AllocationEvent& event) = 0;
};

/// Registers a listener while it lives, in the whole process. Installs the allocator hook.
/// After the destructor no call is in progress.
class AllocationGuard {
 public:
  /// Throws: c10::ValueError – null; c10::Error – as install_cpu_allocator
  explicit AllocationGuard(std::shared_ptr<AllocationListener> listener);
  ~AllocationGuard();
  AllocationGuard(const AllocationGuard&) = delete;
  AllocationGuard& operator=(const AllocationGuard&) = delete;

 private:
  std::shared_ptr<AllocationListener> listener_;
};

/// Counters of the CPU allocator since install_cpu_allocator().
/// Units: bytes as the C heap gave them (malloc_usable_size: the request rounded up)
struct AllocationCounters {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t allocations = 0;
  int64_t frees = 0;
};

/// Puts a counting allocator in place of libtorch's CPU allocator, for good. It takes memory the same way
/// (c10::alloc_cpu).
/// Counted: blocks that c10's CPU allocator handed out since then: tensors, and scratch memory that kernels ask of it.
/// Not counted: what was allocated before, oneDNN's and MKL's own buffers, the C++ heap. Show RSS beside it.
/// Cost:    a few atomic operations an allocation; figures: bench/taps
/// Threads: call it from any; cheap when done
/// Throws:  c10::Error – somebody else's CPU allocator is in place
void install_cpu_allocator();
bool cpu_allocator_installed();

/// Threads: from any; the four figures are not one snapshot while others allocate
AllocationCounters cpu_allocation_counters();
/// Starts the peak anew from the present size.
void reset_cpu_allocation_peak();

}  // namespace bellows::tap
