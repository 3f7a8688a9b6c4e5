#pragma once

#include <string>
#include <vector>

#include "bellows/checkpoint/format.h"
#include "bellows/checkpoint/sharded.h"

/// Implements save_sharded() in two steps: a plan of which rank writes which pieces, and the write itself.
namespace bellows::checkpoint {

/// A piece that this rank writes. It consists of `count` elements of a part's tensor, starting at `offset` in row-major
/// order.
struct OwnPiece {
  size_t tensor = 0, piece = 0;  ///< indices in ShardedIndex
  at::Tensor source;
  int64_t offset = 0, count = 0;
};

/// Assigns pieces to ranks. The index is the same on all ranks; `own` contains the pieces of this rank.
struct SavePlan {
  ShardedIndex index;         ///< without file sizes and checksums
  std::vector<OwnPiece> own;  ///< in the order of the index
};

/// Returns the parts of the state, including this rank's generators. The name of each part is prefixed with the name of
/// its section.
Parts named_parts(const ShardedState& state, int rank);

/// Plans which rank writes which pieces. The ranks exchange the descriptions of their parts once. Collective.
/// Throws: like save_sharded(). Nothing has been written at this point
SavePlan plan_save(const ShardedState& state, const comm::Group& group);

/// Copies the pieces of this rank into `buffers`, which are reused if their sizes fit. After this call, the caller may
/// change the state.
void copy_own(SavePlan& plan, std::vector<at::Tensor>& buffers);

/// Writes a planned checkpoint. Collective.
/// Params: trouble – an error that occurred on this rank after the planning. If it is not empty, nothing is written and
///                   all ranks throw
/// Throws: like save_sharded()
void write_planned(const std::string& path, SavePlan& plan, const comm::Group& group, const std::string& trouble = "");

}  // namespace bellows::checkpoint
