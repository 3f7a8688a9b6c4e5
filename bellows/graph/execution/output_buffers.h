#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "bellows/graph/execution/arena_pool.h"

namespace bellows::graph::detail {

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

/// The memory that one output of a program was handed out in last, and whether somebody holds it still.
/// Threads: one program's; what was handed out may be let go of on any
class HandedOut {
 public:
  /// Memory of its own.
  /// Params: keeps – it has the same memory each time, unless that is still held
  c10::Storage fresh(size_t nbytes, c10::Device device, bool keeps, const std::shared_ptr<ArenaPool>& pool);
  /// Memory that stays while `owner` lives.
  c10::Storage over(void* data, size_t nbytes, c10::Device device, std::shared_ptr<void> owner,
                    const std::shared_ptr<ArenaPool>& pool);
  /// It was let go of after the run `last` and before any other one, as the pool counts.
  bool came_back_after(uint64_t last) const { return returned_ && *returned_ == last; }

 private:
  std::shared_ptr<c10::DataPtr> kept_;
  std::shared_ptr<std::atomic<uint64_t>> returned_;  ///< how many runs there had been; 0: it is held
};

}  // namespace bellows::graph::detail
