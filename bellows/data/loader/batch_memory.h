#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows::data {

/// A pool that provides the memory of all batch tensors. A block returns to the pool when the last tensor that uses it
/// is released, on any thread.
/// Threads: thread-safe
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  /// Params: max_idle – maximum number of unused blocks. If there are more, the block that has been unused for the
  ///         longest time is freed
  ///         allocator – allocates the blocks; Transfer::host_allocator() for batches that are copied to a device
  explicit BatchMemory(size_t max_idle, c10::Allocator* allocator = c10::GetCPUAllocator())
      : max_idle_(max_idle), allocator_(allocator) {}

  /// Returns a block of exactly `bytes` bytes. Its deleter returns the block to the pool, even after the loader is
  /// destroyed.
  /// Throws: c10::OutOfMemoryError if the allocation fails (the message names the number of bytes)
  c10::DataPtr take(size_t bytes);
  /// Returns the number of blocks that have been allocated so far. In the steady state, the number does not change.
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
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_ BELLOWS_GUARDED_BY(mutex_);
  int64_t allocated_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

}  // namespace bellows::data
