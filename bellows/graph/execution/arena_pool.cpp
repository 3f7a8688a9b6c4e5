#include "bellows/graph/execution/arena_pool.h"

#include <algorithm>

#include "bellows/core/mutex.h"

namespace bellows::graph::detail {

std::shared_ptr<ArenaPool> ArenaPool::shared() {
  static Mutex mutex;
  static auto* const held BELLOWS_PT_GUARDED_BY(mutex) = new std::weak_ptr<ArenaPool>;  // never destroyed
  const MutexLock lock(mutex);
  auto pool = held->lock();
  if (!pool) *held = pool = std::make_shared<ArenaPool>();
  return pool;
}

ArenaPool::Arena ArenaPool::take(size_t bytes, c10::Device device) {
  {
    const MutexLock lock(mutex_);
    const auto fits = std::find_if(idle_.begin(), idle_.end(),
                                   [&](const Arena& one) { return one.bytes >= bytes && one.data.device() == device; });
    if (fits != idle_.end()) {
      Arena taken = std::move(*fits);
      idle_.erase(fits);
      return taken;
    }
    const auto too_small =
        std::find_if(idle_.rbegin(), idle_.rend(), [&](const Arena& one) { return one.data.device() == device; });
    if (too_small != idle_.rend()) idle_.erase(std::next(too_small).base());
  }
  return {c10::GetAllocator(device.type())->allocate(bytes), bytes};
}

// Called by destructors. If the list cannot grow, the arena is freed.
void ArenaPool::give_back(Arena arena) noexcept try {
  const MutexLock lock(mutex_);
  const auto behind = std::upper_bound(idle_.begin(), idle_.end(), arena.bytes,
                                       [](size_t bytes, const Arena& one) { return bytes < one.bytes; });
  idle_.insert(behind, std::move(arena));
} catch (const std::bad_alloc&) {
}

}  // namespace bellows::graph::detail
