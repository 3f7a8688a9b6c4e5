#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Field names are those of Hugging Face's config.json; defaults are those of GPT-2 with 124 million parameters.
struct GptOptions {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  std::optional<int64_t> n_inner{};  ///< none: 4 · n_embd
  std::string activation_function = "gelu_new";
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool logits = true;  ///< false: returns the input of the last layer, [N, T, n_embd], for nn::linear_cross_entropy
  bool fused = false;  ///< use the layers of the component nn: less memory, different rounding
};

/// GPT-2, a causal language model. It uses Hugging Face's parameter names, order and shapes (weights of `c_attn` and
/// similar layers are [in, out]). The output layer shares the embedding's weight. Load its files with load_weights()
/// (weights.h).
/// Shapes:   int64 ids [N, T] → logits of the next token [N, T, vocab_size]
/// Numerics: logits and gradients match transformers (tests/models/networks_golden_test.cpp)
/// Throws:   c10::ValueError like bert()
/// Ref:      Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; transformers.GPT2LMHeadModel
Model gpt(const GptOptions& options = {});

}  // namespace bellows::models
