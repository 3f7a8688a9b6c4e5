#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace bellows::graph::detail {

/// Arenas of programs that run: one that is given back serves the next program, so programs that run one after another need the memory
/// of the largest, and find it mapped. All of it is freed with the last user of the pool.
/// Threads: safe
class ArenaPool {
 public:
  struct Arena {
    c10::DataPtr data{};
    size_t bytes = 0;
  };

  /// The pool of this process, while somebody holds it.
  static std::shared_ptr<ArenaPool> shared();

  /// The smallest one that is large enough; else a new one, in the place of the largest that was too small.
  Arena take(size_t bytes, c10::Device device);
  void give_back(Arena arena) noexcept;

  /// A program begins to run.
  void begin_run() { ++runs_; }
  /// How many runs of programs have begun.
  uint64_t runs() const { return runs_; }

 private:
  std::atomic<uint64_t> runs_ = 0;
  std::mutex mutex_;
  std::vector<Arena> idle_;  ///< by size
};

/// An arena out of the pool, until nobody holds anything in it.
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
