#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>
#include <mutex>
#include <vector>

namespace bellows::data {

/// A pool of memory for batch tensors. A block returns to the pool when the last tensor over it is released, on any
/// thread.
///
/// All batch memory is allocated here.
/// Threads: thread-safe
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  /// Params: max_idle – unused blocks to keep; beyond that, the block that has been idle longest is freed
  ///         allocator – source of the blocks; Transfer::host_allocator for batches that go to a device
  explicit BatchMemory(size_t max_idle, c10::Allocator* allocator = c10::GetCPUAllocator())
      : max_idle_(max_idle), allocator_(allocator) {}

  /// Returns a block of exactly `bytes`. Its deleter returns it to the pool and works even after the loader is
  /// destroyed.
  /// Throws: c10::OutOfMemoryError if the allocation fails (the message names the number of bytes)
  c10::DataPtr take(size_t bytes);
  /// Number of blocks allocated so far. It is constant in the steady state.
  int64_t allocated() const;

 private:
  struct Block {
    c10::DataPtr memory;
    size_t bytes = 0;
    std::shared_ptr<BatchMemory> home;  // set while the block is in use
  };
  static void give_back(void* block);

  const size_t max_idle_;
  c10::Allocator* const allocator_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_;
  int64_t allocated_ = 0;
};

}  // namespace bellows::data
