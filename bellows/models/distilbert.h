#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"
#include "bellows/models/tokens.h"

namespace bellows::models {

/// Fields are called as in Hugging Face's config.json; the defaults are distilbert-base-uncased's.
struct DistilBertOptions {
  TextHead head = TextHead::classifier;  ///< all but `pooled`, which DistilBERT lacks
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
  bool mask_padding =
      true;            ///< ids alone: where they are pad_token_id, nobody looks; false: as transformers without a mask
  bool fused = false;  ///< with the layers of the component nn: less memory, other rounding
};

/// DistilBERT, with Hugging Face's names and order of parameters: its files load with load_weights() (weights.h).
/// Shapes:   int64 ids [N, T], or with the mask from pack_tokens() → as TextHead says
/// Numerics: logits and gradients equal transformers' (tests/models/networks_golden_test.cpp)
/// Cost:     67 million parameters with the default options
/// Throws:   c10::ValueError – as bert()
/// Ref:      arXiv:1910.01108; transformers.DistilBertModel, DistilBertForSequenceClassification, DistilBertForMaskedLM
Model distilbert(const DistilBertOptions& options = {});

}  // namespace bellows::models
