#pragma once

#include <torch/nn.h>

#include <functional>

#include "bellows/core/model.h"

namespace bellows::bench {

// bench/peers/tensor.py makes the same model and batch.
constexpr int64_t lm_layers = 4, lm_width = 256, lm_heads = 8, lm_inner = 1024, lm_vocabulary = 16'000;
constexpr int64_t lm_sequences = 4, lm_length = 128;

using BlockCall = std::function<at::Tensor(const at::Tensor&)>;
using RunLmBlock = std::function<at::Tensor(const BlockCall&, const at::Tensor&)>;

/// A decoder-only transformer of 11 M parameters, whose output layer has weights of its own.
struct LanguageModel {
  Model model;
  std::function<void(RunLmBlock)> run_blocks_by;
};

/// Creates the model with formula weights, and without dropout.
LanguageModel make_language_model();

/// Token ids [sequences, length] and next tokens [sequences · length], the same on all ranks.
struct LmBatch {
  at::Tensor x, y;
};
LmBatch make_lm_batch();

}  // namespace bellows::bench
