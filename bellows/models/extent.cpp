#include "bellows/models/extent.h"

#include <algorithm>

namespace bellows::models {

Extent extent_of(const BertOptions& options) {
  return {.layers = options.num_hidden_layers,
          .heads = options.num_attention_heads,
          .head_width = options.hidden_size / options.num_attention_heads,
          .inner = options.intermediate_size,
          .words = options.vocab_size,
          .positions = options.max_position_embeddings,
          .width_name = "hidden_size"};
}

Extent extent_of(const DistilBertOptions& options) {
  return {.layers = options.n_layers,
          .heads = options.n_heads,
          .head_width = options.dim / options.n_heads,
          .inner = options.hidden_dim,
          .words = options.vocab_size,
          .positions = options.max_position_embeddings,
          .width_name = "dim"};
}

Extent extent_of(const GptOptions& options) {
  return {.layers = options.n_layer,
          .heads = options.n_head,
          .head_width = options.n_embd / options.n_head,
          .inner = options.n_inner.value_or(4 * options.n_embd),
          .words = options.vocab_size,
          .positions = options.n_positions,
          .width_name = "n_embd"};
}

BertOptions with_extent(BertOptions options, const Extent& extent) {
  options.num_hidden_layers = extent.layers;
  options.num_attention_heads = extent.heads;
  options.hidden_size = extent.width();
  options.intermediate_size = extent.inner;
  options.vocab_size = extent.words;
  options.max_position_embeddings = extent.positions;
  options.pad_token_id = std::min(options.pad_token_id, extent.words - 1);
  return options;
}

DistilBertOptions with_extent(DistilBertOptions options, const Extent& extent) {
  options.n_layers = extent.layers;
  options.n_heads = extent.heads;
  options.dim = extent.width();
  options.hidden_dim = extent.inner;
  options.vocab_size = extent.words;
  options.max_position_embeddings = extent.positions;
  options.pad_token_id = std::min(options.pad_token_id, extent.words - 1);
  return options;
}

GptOptions with_extent(GptOptions options, const Extent& extent) {
  options.n_layer = extent.layers;
  options.n_head = extent.heads;
  options.n_embd = extent.width();
  options.n_inner = extent.inner;
  options.vocab_size = extent.words;
  options.n_positions = extent.positions;
  return options;
}

}  // namespace bellows::models
