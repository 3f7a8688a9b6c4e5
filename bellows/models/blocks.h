#pragma once

#include <cstdint>
#include <functional>

#include "bellows/core/model.h"

namespace bellows::models {

/// A part of a model that one tensor goes through. It may be kept and called again while the model lives.
using Block = std::function<at::Tensor(const at::Tensor& input)>;
using RunBlock = std::function<at::Tensor(const Block& block, const at::Tensor& input)>;

/// From now on the model calls `run(block, input)` for each of its blocks (a residual block, a transformer layer, a stage
/// of a U-Net) in place of `block(input)`: where recomputation takes hold of a model.
/// ```
/// run_blocks_by(model, [](const Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
/// ```
/// Params:   run – null: directly, as before
/// Returns:  how many blocks a forward pass goes through; 0: the model knows none, and nothing has changed
/// Numerics: the same bits where `run` calls the block
/// Threads:  not while the model runs
int64_t run_blocks_by(const Model& model, RunBlock run);

}  // namespace bellows::models
