#pragma once

#include "bellows/core/model_parts.h"

namespace bellows::models {

/// Divides a model into its embeddings, its blocks (blocks.h) and its head, for pipeline parallelism
/// (parallel/pipeline/pipeline.h). The parts use the modules of the model.
/// Returns:  parts for gpt(), bert() and distilbert()
/// Numerics: running all parts in order is bit-identical to forward()
/// Cost:     BERT and DistilBERT compute their padding mask in each block, instead of once
/// Throws:   c10::ValueError if the model is another one. Encoder–decoders and U-Nets pass several tensors between
///           their blocks, which parts do not support
ModelParts model_parts(const Model& model);

}  // namespace bellows::models
