#pragma once

#include <string>
#include <vector>

#include "bellows/checkpoint/sharded.h"
#include "bellows/checkpoint/sharded_index.h"

namespace bellows::checkpoint {

/// A piece that this rank writes: `count` elements of a part's tensor from `offset` on, in row-major order.
struct OwnPiece {
  size_t tensor = 0, piece = 0;  ///< in the index
  at::Tensor source;
  int64_t offset = 0, count = 0;
};

/// Who writes what, the same on all ranks, and this rank's share of it.
struct SavePlan {
  ShardedIndex index;         ///< still without sizes of files and checksums
  std::vector<OwnPiece> own;  ///< in the order of the index
};

/// The state's parts with their sections in front of their names, this rank's generators among them.
Parts named_parts(const ShardedState& state, int rank);

/// Collective: one exchange of what the ranks hold.
/// Throws: as save_sharded(), before anything is written
SavePlan plan_save(const ShardedState& state, const comm::Group& group);

}  // namespace bellows::checkpoint
