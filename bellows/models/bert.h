#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bellows/core/model.h"
#include "bellows/models/tokens.h"

namespace bellows::models {

/// Options of bert(). The field names are those of Hugging Face's config.json. The defaults are those of
/// bert-base-uncased.
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
  std::optional<double> classifier_dropout{};  ///< defaults to hidden_dropout_prob
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  int64_t pad_token_id = 0;
  /// If no attention mask is given, masks all tokens with pad_token_id. If false, such tokens are not masked, as in
  /// transformers.
  bool mask_padding = true;
  bool fused = false;  ///< use the layers of the component nn, which need less memory and round differently
};

/// BERT with the parameter names and order of Hugging Face. Load Hugging Face's weight files with load_weights()
/// (weights.h).
/// Inputs:   "input_ids" int64 [N, T]; optional "attention_mask" and "token_type_ids" [N, T]
/// Outputs:  one output, whose shape depends on the head (see TextHead)
/// Numerics: logits and gradients match transformers (tests/models/networks_golden_test.cpp). A sample that contains
///           only padding gives finite but meaningless values
/// Cost:     109 million parameters with the default options. If the token ids are on a CPU, each forward pass
///           synchronizes once to read the mask
/// Throws:   c10::ValueError if an option is below 1, if the number of heads does not divide hidden_size, or if a
///           dropout rate is outside [0, 1). Forward throws it if the token ids are not int64, or if a text has more
///           than max_position_embeddings tokens. On a CPU, forward also throws it if an id is outside the vocabulary
/// Ref:      arXiv:1810.04805; transformers.BertModel, BertForSequenceClassification, BertForMaskedLM
Model bert(const BertOptions& options = {});

/// Options of bert-base-uncased, and options of a model with 20 million parameters (six layers of width 384).
BertOptions bert_base();
BertOptions bert_20m();

}  // namespace bellows::models
