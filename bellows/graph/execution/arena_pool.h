#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows::graph::detail {

/// A pool of arenas. An arena is one block of memory for the values of a program. A program reuses an arena that an
/// earlier program returned. Programs that run one after another therefore need only as much memory as the largest of
/// them, and the pages of this memory are already mapped. The memory is freed when the last user releases the pool.
/// Threads: thread-safe
class ArenaPool {
 public:
  struct Arena {
    c10::DataPtr data{};
    size_t bytes = 0;
  };

  /// Returns the pool of this process. The pool exists while at least one user holds a pointer to it.
  static std::shared_ptr<ArenaPool> shared();

  /// Returns the smallest arena that is large enough. If there is none, it allocates a new arena, and frees the largest
  /// arena that is too small.
  Arena take(size_t bytes, c10::Device device);
  void give_back(Arena arena) noexcept;

  /// Counts a program run. Call this function when a program begins to run.
  void begin_run() { ++runs_; }
  /// Returns the number of program runs that have begun.
  uint64_t runs() const { return runs_; }

 private:
  std::atomic<uint64_t> runs_ = 0;
  Mutex mutex_;
  std::vector<Arena> idle_ BELLOWS_GUARDED_BY(mutex_);  ///< sorted by size
};

/// Holds an arena of the pool while any memory in the arena is referenced.
struct ArenaLease {
  ArenaLease(std::shared_ptr<ArenaPool> the_pool, ArenaPool::Arena the_arena)
      : pool(std::move(the_pool)), arena(std::move(the_arena)) {}
  ~ArenaLease() { pool->give_back(std::move(arena)); }
  ArenaLease(const ArenaLease&) = delete;
  ArenaLease& operator=(const ArenaLease&) = delete;

  std::shared_ptr<ArenaPool> pool;
  ArenaPool::Arena arena;
};

}  // namespace bellows::graph::detail
