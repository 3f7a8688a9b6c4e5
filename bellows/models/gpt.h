#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Options of gpt(). The field names are those of Hugging Face's config.json. The defaults are those of GPT-2 with 124
/// million parameters.
struct GptOptions {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  std::optional<int64_t> n_inner{};  ///< defaults to 4 · n_embd
  std::string activation_function = "gelu_new";
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  /// If false, the model returns the input of its last layer, [N, T, n_embd], for nn::linear_cross_entropy.
  bool logits = true;
  bool fused = false;  ///< use the layers of the component nn, which need less memory and round differently
};

/// GPT-2, a causal language model, with the parameter names, order and shapes of Hugging Face. As in Hugging Face's
/// files, the weights of `c_attn` and similar layers are [in, out]. The output layer shares the weight of the
/// embedding. Load Hugging Face's weight files with load_weights() (weights.h).
/// Shapes:   int64 ids [N, T] → logits of the next token [N, T, vocab_size]
/// Numerics: logits and gradients match transformers (tests/models/networks_golden_test.cpp)
/// Throws:   c10::ValueError like bert()
/// Ref:      Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; transformers.GPT2LMHeadModel
Model gpt(const GptOptions& options = {});

}  // namespace bellows::models
