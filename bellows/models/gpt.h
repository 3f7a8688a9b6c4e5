#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Fields are called as in Hugging Face's config.json; the defaults are GPT-2's of 124 million parameters.
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
  bool logits = true;  ///< false: what the last layer would read, [N, T, n_embd], for nn::linear_cross_entropy
  bool fused = false;  ///< with the layers of the component nn: less memory, other rounding
};

/// GPT-2: each token sees itself and those before. With Hugging Face's names, order and shapes of parameters (`c_attn` and
/// its like are [in, out]); the scores' weight is the embedding's: its files load with load_weights() (weights.h).
/// Shapes:   int64 ids [N, T] → scores of the next token [N, T, vocab_size]
/// Numerics: logits and gradients equal transformers' (tests/models/networks_golden_test.cpp)
/// Throws:   c10::ValueError – as bert()
/// Ref:      Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; transformers.GPT2LMHeadModel
Model gpt(const GptOptions& options = {});

}  // namespace bellows::models
