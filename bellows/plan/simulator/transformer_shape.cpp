#include "bellows/plan/simulator/transformer_shape.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/io/tables/json_impl.h"
#include "bellows/models/registry.h"
#include "bellows/system/file.h"

namespace bellows::train {

namespace {

using ShapeJson = nlohmann::json;

/// Returns the integer of a field.
/// Params: otherwise – the value of a missing field; 0: the field is required
int64_t shape_field(const ShapeJson& config, const std::string& path, const char* key, int64_t otherwise = 0) {
  const auto found = config.find(key);
  if (otherwise > 0 && (found == config.end() || found->is_null())) return otherwise;
  const bool valid = found != config.end() && found->is_number_integer();
  const int64_t value = valid ? found->get<int64_t>() : 0;
  TORCH_CHECK_VALUE(value > 0 && value <= int64_t{1} << 30, "config ", path, ": expected ", key,
                    " to be a whole number from 1 to 2^30, found ",
                    found == config.end() ? "nothing" : io::shown_json(*found), ".");
  return value;
}

/// Decoders with RMSNorm, rotary positions and SwiGLU.
TransformerShape llama_shape(const ShapeJson& config, const std::string& path) {
  TransformerShape shape{.name = path, .gated = true, .learned_positions = false, .biases = false, .dropout = false};
  shape.layers = shape_field(config, path, "num_hidden_layers");
  shape.width = shape_field(config, path, "hidden_size");
  shape.heads = shape_field(config, path, "num_attention_heads");
  shape.kv_heads = shape_field(config, path, "num_key_value_heads", shape.heads);
  TORCH_CHECK_VALUE(shape.width >= shape.heads, "config ", path,
                    ": expected hidden_size to be at least num_attention_heads, got ", shape.width, " and ",
                    shape.heads, ".");
  shape.head_width = shape_field(config, path, "head_dim", shape.width / shape.heads);
  shape.inner = shape_field(config, path, "intermediate_size");
  shape.vocabulary = shape_field(config, path, "vocab_size");
  shape.positions = shape_field(config, path, "max_position_embeddings", 2048);
  // The simulator counts parameters in 64 bits.
  const double widest = std::max({static_cast<double>(shape.heads) * static_cast<double>(shape.head_width),
                                  static_cast<double>(shape.kv_heads) * static_cast<double>(shape.head_width),
                                  static_cast<double>(shape.inner)});
  TORCH_CHECK_VALUE(static_cast<double>(shape.layers) * static_cast<double>(shape.width) * widest < 1e17, "config ",
                    path, ": expected fewer than 10^17 parameters, found ", shape.layers, " layers of width ",
                    shape.width, ". Check the sizes.");
  const auto tied = config.find("tie_word_embeddings");
  shape.tied = tied != config.end() && tied->is_boolean() && tied->get<bool>();
  return shape;
}

TransformerShape shape_of_size(const models::ModelEntry& entry, const models::ModelSize& size) {
  const bool predicts_tokens = entry.output == models::OutputKind::token;
  return {.name = entry.name,
          .layers = size.layers,
          .width = size.width(),
          .heads = size.heads,
          .kv_heads = size.heads,
          .head_width = size.head_width,
          .inner = size.inner,
          .vocabulary = size.words,
          .positions = size.positions,
          .causal = predicts_tokens,
          .predicts_tokens = predicts_tokens};
}

}  // namespace

int64_t TransformerShape::layer_matrices() const {
  return 2 * width * (query_width() + kv_width()) + (gated ? 3 : 2) * width * inner;
}

int64_t TransformerShape::layer_parameters() const {
  const int64_t small = biases ? query_width() + 2 * kv_width() + inner + 6 * width : 2 * width;
  return layer_matrices() + small;
}

int64_t TransformerShape::embedding_parameters() const {
  return (vocabulary + (learned_positions ? positions : 0)) * width;
}

int64_t TransformerShape::head_parameters() const {
  return predicts_tokens && !tied ? vocabulary * width : 0;
}

int64_t TransformerShape::parameters() const {
  return layers * layer_parameters() + embedding_parameters() + head_parameters() + (biases ? 2 : 1) * width;
}

TransformerShape transformer_shape(const std::string& model) {
  if (model.ends_with(".json")) {
    const ShapeJson config = io::parse_shallow_json(read_text_file(model), "config " + model);
    TORCH_CHECK_VALUE(config.is_object(), "config ", model, ": expected a JSON object, found other content.");
    const ShapeJson type = config.value("model_type", ShapeJson());
    if (type == "llama" || type == "mistral" || type == "qwen2") return llama_shape(config, model);
  }
  const models::ModelEntry entry = models::model_entry(model);
  TORCH_CHECK_VALUE(entry.model_size,
                    "transformer_shape: expected a transformer of known size, such as gpt2 or a config.json, got ",
                    model, ".");
  return shape_of_size(entry, entry.model_size(entry.input_shape[0]));
}

}  // namespace bellows::train
