#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace bellows::graph::detail {

/// A pool of arenas. A returned arena is reused by the next program. Programs that run one after another therefore need
/// only the memory of the largest one, and its pages are already mapped. The memory is freed with the last user of the
/// pool.
/// Threads: safe
class ArenaPool {
 public:
  struct Arena {
    c10::DataPtr data{};
    size_t bytes = 0;
  };

  /// Returns: the process-wide pool. It exists while it is referenced.
  static std::shared_ptr<ArenaPool> shared();

  /// Returns: the smallest arena that is large enough, or else a new one. A new arena replaces the largest one that is
  ///          too small.
  Arena take(size_t bytes, c10::Device device);
  void give_back(Arena arena) noexcept;

  /// Call it when a program begins to run.
  void begin_run() { ++runs_; }
  /// Returns: the number of program runs that have begun
  uint64_t runs() const { return runs_; }

 private:
  std::atomic<uint64_t> runs_ = 0;
  std::mutex mutex_;
  std::vector<Arena> idle_;  ///< sorted by size
};

/// Holds an arena of the pool as long as anything in it is referenced.
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
