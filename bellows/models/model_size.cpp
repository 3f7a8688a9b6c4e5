#include "bellows/models/model_size.h"

#include <algorithm>

namespace bellows::models {

ModelSize model_size_of(const BertOptions& options) {
  return {.layers = options.num_hidden_layers,
          .heads = options.num_attention_heads,
          .head_width = options.hidden_size / options.num_attention_heads,
          .inner = options.intermediate_size,
          .words = options.vocab_size,
          .positions = options.max_position_embeddings,
          .width_name = "hidden_size"};
}

ModelSize model_size_of(const DistilBertOptions& options) {
  return {.layers = options.n_layers,
          .heads = options.n_heads,
          .head_width = options.dim / options.n_heads,
          .inner = options.hidden_dim,
          .words = options.vocab_size,
          .positions = options.max_position_embeddings,
          .width_name = "dim"};
}

ModelSize model_size_of(const GptOptions& options) {
  return {.layers = options.n_layer,
          .heads = options.n_head,
          .head_width = options.n_embd / options.n_head,
          .inner = options.n_inner.value_or(4 * options.n_embd),
          .words = options.vocab_size,
          .positions = options.n_positions,
          .width_name = "n_embd"};
}

BertOptions with_model_size(BertOptions options, const ModelSize& model_size) {
  options.num_hidden_layers = model_size.layers;
  options.num_attention_heads = model_size.heads;
  options.hidden_size = model_size.width();
  options.intermediate_size = model_size.inner;
  options.vocab_size = model_size.words;
  options.max_position_embeddings = model_size.positions;
  options.pad_token_id = std::min(options.pad_token_id, model_size.words - 1);
  return options;
}

DistilBertOptions with_model_size(DistilBertOptions options, const ModelSize& model_size) {
  options.n_layers = model_size.layers;
  options.n_heads = model_size.heads;
  options.dim = model_size.width();
  options.hidden_dim = model_size.inner;
  options.vocab_size = model_size.words;
  options.max_position_embeddings = model_size.positions;
  options.pad_token_id = std::min(options.pad_token_id, model_size.words - 1);
  return options;
}

GptOptions with_model_size(GptOptions options, const ModelSize& model_size) {
  options.n_layer = model_size.layers;
  options.n_head = model_size.heads;
  options.n_embd = model_size.width();
  options.n_inner = model_size.inner;
  options.vocab_size = model_size.words;
  options.n_positions = model_size.positions;
  return options;
}

}  // namespace bellows::models
