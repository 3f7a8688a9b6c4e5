#pragma once

#include <cstdint>
#include <functional>

#include "bellows/core/model.h"
#include "bellows/core/model_parts.h"

namespace bellows::models {

/// A part of a model that maps one tensor to one tensor. You may store it and call it again as long as the model
/// exists.
using Block = std::function<at::Tensor(const at::Tensor& input)>;
using RunBlock = std::function<at::Tensor(const Block& block, const at::Tensor& input)>;

/// Makes the model call `run(block, input)` instead of `block(input)` for each of its blocks. A block is a residual
/// block, a transformer layer or a stage of a U-Net. Activation checkpointing uses this function.
/// ```
/// run_blocks_by(model, [](const Block& block, const at::Tensor& x) { return recompute::checkpoint(block, x); });
/// ```
/// Params:   run – callback. If null, the model calls its blocks directly again
/// Returns:  the number of blocks in a forward pass. If the model does not define blocks, returns 0 and changes nothing
/// Numerics: bit-identical if `run` calls the block
/// Threads:  do not call it while the model runs
int64_t run_blocks_by(const Model& model, RunBlock run);

/// Divides a model into its embeddings, its blocks and its head, for pipeline parallelism
/// (parallel/pipeline/pipeline.h). The parts use the modules of the model, which must exist as long as the parts.
/// Returns:  parts for gpt(), bert(), distilbert() and encoder_decoder()
/// Numerics: running all parts in order is bit-identical to forward()
/// Cost:     BERT, DistilBERT and the encoder–decoder compute their padding mask in each block, instead of once. Parts of
///           the decoder copy the output of the encoder, which they pass on together with their own output
/// Throws:   c10::ValueError if the model is another one. U-Nets pass many tensors between their blocks, which parts do
///           not support
ModelParts model_parts(const Model& model);

}  // namespace bellows::models
