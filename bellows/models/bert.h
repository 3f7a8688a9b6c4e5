#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bellows/core/model.h"
#include "bellows/models/tokens.h"

namespace bellows::models {

/// Fields are called as in Hugging Face's config.json; the defaults are bert-base-uncased's.
struct BertOptions {
  TextHead head = TextHead::classifier;
  int64_t num_labels = 2;
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  std::string hidden_act = "gelu";  ///< "gelu", "gelu_new" or "relu"
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  std::optional<double> classifier_dropout{};  ///< none: hidden_dropout_prob
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  int64_t pad_token_id = 0;
  bool mask_padding =
      true;            ///< ids alone: where they are pad_token_id, nobody looks; false: as transformers without a mask
  bool fused = false;  ///< with the layers of the component nn: less memory, other rounding
};

/// BERT, with Hugging Face's names and order of parameters: its files load with load_weights() (weights.h).
/// Shapes:   int64 ids [N, T], or with mask and token types from pack_tokens() → as TextHead says
/// Numerics: logits and gradients equal transformers' (tests/models/networks_golden_test.cpp); a sample that is all padding
///           gives finite values, which mean nothing
/// Cost:     109 million parameters with the default options. One synchronization a pass where ids are on a CPU.
/// Throws:   c10::ValueError – options below 1, heads that do not divide hidden_size, dropout outside [0, 1); in
///           forward: no int64 ids, too many or unknown ones
/// Ref:      arXiv:1810.04805; transformers.BertModel, BertForSequenceClassification, BertForMaskedLM
Model bert(const BertOptions& options = {});

/// bert-base-uncased's shape, and one of 20 million parameters: six layers of width 384.
BertOptions bert_base();
BertOptions bert_20m();

}  // namespace bellows::models
