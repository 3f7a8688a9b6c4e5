#include "bellows/data/loader/batch_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::data {

namespace {

c10::DataPtr allocate(c10::Allocator& allocator, size_t bytes) {
  try {
    return allocator.allocate(bytes);
  } catch (const c10::Error&) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "Loader: out of memory. A tensor of the batch needs ", bytes,
                     " bytes. Use a smaller batch size or smaller images.");
  }
}

}  // namespace

c10::DataPtr BatchMemory::take(size_t bytes) {
  std::unique_ptr<Block> block;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& idle) { return idle->bytes == bytes; });
    if (found != idle_.end()) {
      block = std::move(*found);
      idle_.erase(found);
    } else {
      ++allocated_;
    }
  }
  if (!block) block = std::make_unique<Block>(Block{allocate(*allocator_, bytes), bytes, nullptr});
  block->home = shared_from_this();
  void* data = block->memory.get();
  return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
}

void BatchMemory::give_back(void* lent) {
  std::unique_ptr<Block> block(static_cast<Block*>(lent));
  const std::shared_ptr<BatchMemory> home = std::move(block->home);  // destroyed last, after the lock
  std::unique_ptr<Block> freed;
  MutexLock lock(home->mutex_);
  home->idle_.push_back(std::move(block));
  if (home->idle_.size() <= home->max_idle_) return;
  freed = std::move(home->idle_.front());  // if sizes differ, one of a rare size
  home->idle_.erase(home->idle_.begin());
}

int64_t BatchMemory::allocated() const {
  MutexLock lock(mutex_);
  return allocated_;
}

}  // namespace bellows::data
