#include "bellows/models/config.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "bellows/io/network/hub.h"
#include "bellows/io/tables/json_impl.h"
#include "bellows/models/layers_impl.h"
#include "bellows/system/file.h"

namespace bellows::models {

namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
  return value.is_string() ? io::printable(value.get<std::string>(), 60) : io::shown_json(value);
}

std::string config_text(const std::string& path_or_address) {
  if (!io::is_remote_address(path_or_address)) return read_text_file(path_or_address);
  return std::string(io::as_text(io::fetch_file(path_or_address).content->bytes()));
}

/// Reads the fields of a config.json.
class ModelConfig {
 public:
  explicit ModelConfig(const std::string& path) : path_(path) {
    document_ = io::parse_shallow_json(config_text(path), "config " + path);
    TORCH_CHECK_VALUE(document_.is_object(), "config ", path, ": expected a JSON object, found ",
                      document_.is_discarded() ? "invalid JSON" : shown(document_), ".");
  }
  ModelConfig(const std::string& path, const std::string& model_type) : ModelConfig(path) {
    require("model_type", model_type);
  }

  void read(const char* key, int64_t& value) const {
    if (const Json* found = find(key, &Json::is_number_integer, "a whole number")) value = found->get<int64_t>();
  }
  void read(const char* key, double& value) const {
    if (const Json* found = find(key, &Json::is_number, "a number")) value = found->get<double>();
  }
  void read(const char* key, std::string& value) const {
    if (const Json* found = find(key, &Json::is_string, "a text")) value = found->get<std::string>();
  }
  template <class T>
  void read(const char* key, std::optional<T>& value) const {
    T given = {};
    if (!document_.contains(key) || document_.at(key).is_null()) return;
    read(key, given);
    value = given;
  }
  std::vector<int64_t> integers(const char* key) const {
    const Json* found = find(key, &Json::is_array, "a list");
    if (!found) return {};
    const bool whole = std::ranges::all_of(*found, [](const Json& item) { return item.is_number_integer(); });
    TORCH_CHECK_VALUE(whole, "config ", path_, ": expected ", key, " to be a list of whole numbers, found ",
                      shown(*found), ".");
    return found->get<std::vector<int64_t>>();
  }
  void read_labels(int64_t& value) const {
    if (const Json* found = find("id2label", &Json::is_object, "an object"))
      value = static_cast<int64_t>(found->size());
    read("num_labels", value);
  }

  /// Throws: c10::ValueError if the file has another value
  void require(const char* key, const Json& expected) const {
    const Json found = document_.value(key, expected);
    TORCH_CHECK_VALUE(found == expected, "config ", path_, ": expected ", key, " = ", shown(expected),
                      ", the only value that this model supports, found ", shown(found), ".");
  }

 private:
  /// Returns null if the file lacks the field or has null.
  const Json* find(const char* key, bool (Json::*is_kind)() const noexcept, const char* kind) const {
    const auto found = document_.find(key);
    if (found == document_.end() || found->is_null()) return nullptr;
    TORCH_CHECK_VALUE(((*found).*is_kind)(), "config ", path_, ": expected ", key, " to be ", kind, ", found ",
                      shown(*found), ".");
    return &*found;
  }

  std::string path_;
  Json document_;
};

template <class Options>
ModelEntry entry_of(const std::string& path, const Options& options, OutputKind output,
                    Model (*make)(const Options&, int64_t classes)) {
  const auto model_size = [path, options](int64_t words) {
    TORCH_CHECK_VALUE(words <= options.vocab_size, "config ", path,
                      ": expected a vocabulary of at most vocab_size = ", options.vocab_size, " tokens, got ", words,
                      ". Use the tokenizer of this model.");
    return model_size_of(options);
  };
  const auto sized = [path, options, make](const ModelSize& of, int64_t classes) {
    return make(with_model_size(options, of), classes).renamed(path);
  };
  return {.name = path,
          .description = "a model from a config.json",
          .input_shape = {options.vocab_size, std::min<int64_t>(model_size_of(options).positions, 128), 0},
          .make = [model_size, sized](int64_t classes, int64_t words) { return sized(model_size(words), classes); },
          .input = InputKind::tokens,
          .output = output,
          .model_size = model_size,
          .make_sized = sized};
}

constexpr std::array<std::string_view, 5> residual_networks = {"resnet18", "resnet34", "resnet50", "resnet101",
                                                               "resnet152"};

ModelEntry image_entry(std::string_view name, const std::string& path) {
  ModelEntry entry = registry().at(std::string(name));
  entry.name = path;
  entry.description = "a model from a config.json";
  return entry;
}

/// The entry for a ResNet of transformers. Its names are converted by load_pretrained().
ModelEntry resnet_entry(const ModelConfig& config, const std::string& path) {
  std::string layers = "bottleneck";
  config.read("layer_type", layers);
  const std::vector<int64_t> depths = config.integers("depths");
  config.require("embedding_size", 64);
  config.require("hidden_act", "relu");
  config.require("downsample_in_first_stage", false);
  config.require("downsample_in_bottleneck", false);
  const bool bottleneck = layers == "bottleneck";
  config.require("hidden_sizes", bottleneck ? Json{256, 512, 1024, 2048} : Json{64, 128, 256, 512});
  using Depths = std::vector<int64_t>;
  const std::array<std::pair<bool, Depths>, 5> known = {{{false, Depths{2, 2, 2, 2}},
                                                         {false, Depths{3, 4, 6, 3}},
                                                         {true, Depths{3, 4, 6, 3}},
                                                         {true, Depths{3, 4, 23, 3}},
                                                         {true, Depths{3, 8, 36, 3}}}};
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i] == std::pair(bottleneck, depths)) return image_entry(residual_networks[i], path);
  }
  TORCH_CHECK_VALUE(false, "config ", path, ": expected layer_type and depths of one of ",
                    c10::Join(", ", residual_networks), ", found ", io::printable(layers), " and [",
                    c10::Join(", ", depths), "].");
}

}  // namespace

BertOptions read_bert_config(const std::string& path) {
  const ModelConfig config(path, "bert");
  config.require("position_embedding_type", "absolute");
  config.require("is_decoder", false);
  config.require("add_cross_attention", false);
  config.require("tie_word_embeddings", true);
  BertOptions options;
  config.read_labels(options.num_labels);
  config.read("vocab_size", options.vocab_size);
  config.read("hidden_size", options.hidden_size);
  config.read("num_hidden_layers", options.num_hidden_layers);
  config.read("num_attention_heads", options.num_attention_heads);
  config.read("intermediate_size", options.intermediate_size);
  config.read("hidden_act", options.hidden_act);
  config.read("hidden_dropout_prob", options.hidden_dropout_prob);
  config.read("attention_probs_dropout_prob", options.attention_probs_dropout_prob);
  config.read("classifier_dropout", options.classifier_dropout);
  config.read("max_position_embeddings", options.max_position_embeddings);
  config.read("type_vocab_size", options.type_vocab_size);
  config.read("initializer_range", options.initializer_range);
  config.read("layer_norm_eps", options.layer_norm_eps);
  config.read("pad_token_id", options.pad_token_id);
  layers::check_options("config " + path, options);
  return options;
}

DistilBertOptions read_distilbert_config(const std::string& path) {
  const ModelConfig config(path, "distilbert");
  config.require("tie_word_embeddings", true);
  DistilBertOptions options;
  config.read_labels(options.num_labels);
  config.read("vocab_size", options.vocab_size);
  config.read("dim", options.dim);
  config.read("n_layers", options.n_layers);
  config.read("n_heads", options.n_heads);
  config.read("hidden_dim", options.hidden_dim);
  config.read("activation", options.activation);
  config.read("dropout", options.dropout);
  config.read("attention_dropout", options.attention_dropout);
  config.read("seq_classif_dropout", options.seq_classif_dropout);
  config.read("max_position_embeddings", options.max_position_embeddings);
  config.read("initializer_range", options.initializer_range);
  config.read("pad_token_id", options.pad_token_id);
  layers::check_options("config " + path, options);
  return options;
}

GptOptions read_gpt_config(const std::string& path) {
  const ModelConfig config(path, "gpt2");
  config.require("add_cross_attention", false);
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  config.require("tie_word_embeddings", true);
  GptOptions options;
  config.read("vocab_size", options.vocab_size);
  config.read("n_positions", options.n_positions);
  config.read("n_embd", options.n_embd);
  config.read("n_layer", options.n_layer);
  config.read("n_head", options.n_head);
  config.read("n_inner", options.n_inner);
  config.read("activation_function", options.activation_function);
  config.read("resid_pdrop", options.resid_pdrop);
  config.read("embd_pdrop", options.embd_pdrop);
  config.read("attn_pdrop", options.attn_pdrop);
  config.read("layer_norm_epsilon", options.layer_norm_epsilon);
  config.read("initializer_range", options.initializer_range);
  layers::check_options("config " + path, options);
  return options;
}

ModelEntry config_entry(const std::string& path) {
  std::string type, architecture;
  const ModelConfig config(path);
  config.read("model_type", type);
  config.read("architecture", architecture);  // the field of timm
  if (type == "bert") {
    return entry_of<BertOptions>(path, read_bert_config(path), OutputKind::sample,
                                 [](const BertOptions& options, int64_t classes) {
                                   BertOptions own = options;
                                   own.num_labels = classes;
                                   return bert(own);
                                 });
  }
  if (type == "distilbert") {
    return entry_of<DistilBertOptions>(path, read_distilbert_config(path), OutputKind::sample,
                                       [](const DistilBertOptions& options, int64_t classes) {
                                         DistilBertOptions own = options;
                                         own.num_labels = classes;
                                         return distilbert(own);
                                       });
  }
  if (type == "resnet") return resnet_entry(config, path);
  if (type.empty() && std::ranges::count(residual_networks, architecture) > 0) return image_entry(architecture, path);
  TORCH_CHECK_VALUE(
      type == "gpt2", "config ", path,
      ": expected model_type to be bert, distilbert, gpt2 or resnet, or architecture to be one of ",
      c10::Join(", ", residual_networks), ", found ",
      type.empty() && !architecture.empty() ? "architecture " + io::printable(architecture) : io::printable(type),
      ". For other models, export them with torch.export (net.pt2).");
  return entry_of<GptOptions>(path, read_gpt_config(path), OutputKind::token,
                              [](const GptOptions& options, int64_t) { return gpt(options); });
}

}  // namespace bellows::models
