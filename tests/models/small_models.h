#pragma once

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/gpt.h"

/// Models that are trained within milliseconds; a test that needs another size says which.
namespace bellows::models {

// The sizes that tools/goldens/networks.py gives its models, too.

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

// Wide enough for vector instructions.

inline BertOptions wide_bert() {
  return {.vocab_size = 50,
          .hidden_size = 32,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .intermediate_size = 64,
          .max_position_embeddings = 16};
}

inline EncoderDecoderOptions wide_encoder_decoder() {
  return {.in_features = 2,
          .horizon = 3,
          .d_model = 16,
          .nhead = 2,
          .num_encoder_layers = 2,
          .num_decoder_layers = 1,
          .dim_feedforward = 32};
}

inline BertOptions without_dropout(BertOptions options) {
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  return options;
}

inline GptOptions without_dropout(GptOptions options) {
  options.resid_pdrop = options.embd_pdrop = options.attn_pdrop = 0;
  return options;
}

}  // namespace bellows::models
