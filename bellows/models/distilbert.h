#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"
#include "bellows/models/tokens.h"

namespace bellows::models {

/// Options of distilbert(). The field names are those of Hugging Face's config.json. The defaults are those of
/// distilbert-base-uncased.
struct DistilBertOptions {
  TextHead head = TextHead::classifier;  ///< all heads except `pooled`, which DistilBERT does not have
  int64_t num_labels = 2;
  int64_t vocab_size = 30522;
  int64_t dim = 768;
  int64_t n_layers = 6;
  int64_t n_heads = 12;
  int64_t hidden_dim = 3072;
  std::string activation = "gelu";  ///< "gelu", "gelu_new" or "relu"
  double dropout = 0.1;
  double attention_dropout = 0.1;
  double seq_classif_dropout = 0.2;
  int64_t max_position_embeddings = 512;
  double initializer_range = 0.02;
  int64_t pad_token_id = 0;
  /// If no attention mask is given, masks all tokens with pad_token_id. If false, such tokens are not masked, as in
  /// transformers.
  bool mask_padding = true;
  bool fused = false;  ///< use the layers of the component nn, which need less memory and round differently
};

/// DistilBERT with the parameter names and order of Hugging Face. Load Hugging Face's weight files with load_weights()
/// (weights.h).
/// Inputs:   "input_ids" int64 [N, T]; optional "attention_mask" [N, T]
/// Outputs:  one output, whose shape depends on the head (see TextHead)
/// Numerics: logits and gradients match transformers (tests/models/networks_golden_test.cpp)
/// Cost:     67 million parameters with the default options
/// Throws:   c10::ValueError like bert()
/// Ref:      arXiv:1910.01108; transformers.DistilBertModel, DistilBertForSequenceClassification, DistilBertForMaskedLM
Model distilbert(const DistilBertOptions& options = {});

}  // namespace bellows::models
