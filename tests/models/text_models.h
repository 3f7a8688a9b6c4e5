#pragma once

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"

/// The sizes that tools/goldens/networks.py gives its models, too.
namespace bellows::models {

inline BertOptions small_bert(TextHead head = TextHead::classifier) {
  return {.head = head,
          .num_labels = 3,
          .vocab_size = 30,
          .hidden_size = 8,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .intermediate_size = 12,
          .max_position_embeddings = 12};
}

inline DistilBertOptions small_distilbert(TextHead head = TextHead::classifier) {
  return {.head = head,
          .num_labels = 3,
          .vocab_size = 30,
          .dim = 8,
          .n_layers = 2,
          .n_heads = 2,
          .hidden_dim = 12,
          .max_position_embeddings = 12};
}

inline GptOptions small_gpt() {
  return {.vocab_size = 30, .n_positions = 12, .n_embd = 8, .n_layer = 2, .n_head = 2};
}

}  // namespace bellows::models
