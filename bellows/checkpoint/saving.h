#pragma once

#include <string>
#include <vector>

#include "bellows/checkpoint/format.h"
#include "bellows/checkpoint/sharded.h"

/// Implements save_sharded() in two steps: planning which rank writes which pieces, and writing them.
namespace bellows::checkpoint {

/// A piece that this rank writes: `count` elements of a part's tensor, starting at `offset` in row-major order.
struct OwnPiece {
  size_t tensor = 0, piece = 0;  ///< indices in ShardedIndex
  at::Tensor source;
  int64_t offset = 0, count = 0;
};

/// Assigns pieces to ranks. The index is the same on all ranks; `own` has this rank's pieces.
struct SavePlan {
  ShardedIndex index;         ///< without file sizes and checksums
  std::vector<OwnPiece> own;  ///< in index order
};

/// The state's parts with section prefixes, including this rank's generators.
Parts named_parts(const ShardedState& state, int rank);

/// Collective: the ranks exchange the descriptions of their parts once.
/// Throws: like save_sharded(), before anything is written
SavePlan plan_save(const ShardedState& state, const comm::Group& group);

/// Copies the pieces of this rank into `buffers`, which are reused if they fit. Afterwards, the state may change.
void copy_own(SavePlan& plan, std::vector<at::Tensor>& buffers);

/// Collective: writes a planned checkpoint.
/// Params: trouble – an error on this rank since the planning; then nothing is written, and all ranks throw
/// Throws: like save_sharded()
void write_planned(const std::string& path, SavePlan& plan, const comm::Group& group, const std::string& trouble = "");

}  // namespace bellows::checkpoint
