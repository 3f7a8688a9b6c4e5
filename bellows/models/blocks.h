#pragma once

#include <cstdint>
#include <functional>

#include "bellows/core/model.h"

namespace bellows::models {

/// A part of a model that one tensor goes through. It may be stored and called again while the model lives.
using Block = std::function<at::Tensor(const at::Tensor& input)>;
using RunBlock = std::function<at::Tensor(const Block& block, const at::Tensor& input)>;

/// Makes the model call `run(block, input)` instead of `block(input)` for each of its blocks (a residual block, a
/// transformer layer, a stage of a U-Net). Activation checkpointing uses it.
/// ```
/// run_blocks_by(model, [](const Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
/// ```
/// Params:   run – null: call blocks directly, as before
/// Returns:  the number of blocks in a forward pass; 0 if the model does not define blocks; then nothing changes
/// Numerics: bit-identical if `run` calls the block
/// Threads:  not while the model runs
int64_t run_blocks_by(const Model& model, RunBlock run);

}  // namespace bellows::models
