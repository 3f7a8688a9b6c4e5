#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>
#include <mutex>
#include <vector>

namespace bellows::data {

/// Memory for batch tensors that comes back when the last tensor over it is gone, wherever that happens.
///
/// The one place where a batch's memory is allocated.
/// Threads: safe.
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  /// Params: max_idle – blocks kept for later; where there are more, the one that has waited longest is freed
  ///         allocator – where they come from: Transfer::host_allocator for batches that go to a device
  explicit BatchMemory(size_t max_idle, c10::Allocator* allocator = c10::GetCPUAllocator())
      : max_idle_(max_idle), allocator_(allocator) {}

  /// A block of exactly `bytes`; its deleter brings it back, also after the loader is gone.
  /// Throws: c10::OutOfMemoryError – names the number of bytes
  c10::DataPtr take(size_t bytes);
  /// Blocks allocated so far: constant in the steady state.
  int64_t allocated() const;

 private:
  struct Block {
    c10::DataPtr memory;
    size_t bytes = 0;
    std::shared_ptr<BatchMemory> home;  // set while it is lent
  };
  static void give_back(void* block);

  const size_t max_idle_;
  c10::Allocator* const allocator_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_;
  int64_t allocated_ = 0;
};

}  // namespace bellows::data
