#include "bellows/models/weights.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <map>
#include <set>
#include <vector>

#include "bellows/core/error.h"

namespace bellows::models {

namespace {

constexpr std::array<std::string_view, 3> base_prefixes = {"bert.", "distilbert.", "transformer."};

/// Suffixes of tied weights, each with the suffix of the weight that it is tied to.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> ties = {
    {{"lm_head.weight", "wte.weight"},
     {"cls.predictions.decoder.weight", "word_embeddings.weight"},
     {"cls.predictions.decoder.bias", "cls.predictions.bias"},
     {"vocab_projector.weight", "word_embeddings.weight"}}};

bool is_no_weight(std::string_view name) {
  return name.ends_with("embeddings.position_ids") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

std::string modern(std::string name) {
  for (const auto& [old, now] :
       {std::pair("LayerNorm.gamma", "LayerNorm.weight"), {"LayerNorm.beta", "LayerNorm.bias"}}) {
    if (name.ends_with(old)) return name.substr(0, name.size() - std::string_view(old).size()) + now;
  }
  return name;
}

/// Returns the model's name for `name`, with or without the prefix of a base model; `name` itself if the model has
/// neither.
std::string known_name(const std::string& name, const std::set<std::string>& own) {
  if (own.count(name)) return name;
  for (const std::string_view prefix : base_prefixes) {
    if (const std::string longer = std::string(prefix) + name; own.count(longer)) return longer;
    if (name.starts_with(prefix) && own.count(name.substr(prefix.size()))) return name.substr(prefix.size());
  }
  return name;
}

/// Whether this is a copy of a weight that the model has under another name.
bool is_tied_copy(const std::string& name, const at::Tensor& tensor, const NamedTensors& tensors) {
  for (const auto& [copy, original] : ties) {
    if (!name.ends_with(copy)) continue;
    for (const auto& [other, value] : tensors) {
      if (!other.ends_with(original)) continue;
      TORCH_CHECK_VALUE(
          value.sizes() == tensor.sizes() && value.scalar_type() == tensor.scalar_type() && at::equal(value, tensor),
          "load_weights: expected \"", name, "\" to equal \"", other,
          "\", because this model ties these weights, got different values. The file was trained without the tie.");
      return true;
    }
  }
  return false;
}

/// A tensor that belongs to the model, or to no model.
struct NamedWeight {
  std::string name, given;  ///< in the model and in the file
  at::Tensor tensor;
};

/// The tensors without those that are no separate weights, with their names in the model.
std::vector<NamedWeight> separate_weights(const std::set<std::string>& own, const NamedTensors& tensors) {
  std::vector<NamedWeight> weights;
  weights.reserve(tensors.size());
  std::map<std::string, std::string> first;  // maps the model's names to those in the files
  for (const auto& [given, tensor] : tensors) {
    const std::string name = known_name(modern(given), own);
    if (!own.count(name) && (is_no_weight(name) || is_tied_copy(name, tensor, tensors))) continue;
    const auto [other, is_new] = first.try_emplace(name, given);
    TORCH_CHECK_VALUE(is_new, "load_weights: expected one tensor for \"", name, "\", got two, named \"", other->second,
                      "\" and \"", given, "\". Leave out one of the tensors or files.");
    weights.push_back({name, given, tensor});
  }
  return weights;
}

/// Adds the counters of batch norms to weights from PyTorch before 0.4.1, which had none. They start at 0, as in PyTorch.
void add_batch_counters(const Model& model, NamedTensors& weights) {
  constexpr std::string_view counter = "num_batches_tracked";
  std::set<std::string> given;
  for (const auto& [name, tensor] : weights) {
    if (name.ends_with(counter)) return;
    given.insert(name);
  }
  for (const auto& [name, tensor] : model.named_buffers()) {
    if (name.ends_with(counter) && given.count(name.substr(0, name.size() - counter.size()) + "running_mean"))
      weights.emplace_back(name, at::zeros_like(tensor));
  }
}

std::set<std::string> own_names(const Model& model) {
  std::set<std::string> own;
  for (const auto& [name, tensor] : model.state_dict()) own.insert(name);
  return own;
}

}  // namespace

LoadReport load_weights(const Model& model, const NamedTensors& tensors, bool strict) {
  NamedTensors fitting;
  for (const NamedWeight& weight : separate_weights(own_names(model), tensors))
    fitting.emplace_back(weight.name, weight.tensor);
  add_batch_counters(model, fitting);
  return load_state_dict(model, fitting, strict);
}

std::map<std::string, std::string> weight_names(const Model& model, const NamedTensors& tensors) {
  const std::set<std::string> own = own_names(model);
  std::map<std::string, std::string> names;
  LoadReport report;
  for (const NamedWeight& weight : separate_weights(own, tensors)) {
    if (own.count(weight.name)) {
      names.emplace(weight.name, weight.given);
    } else {
      report.unexpected.push_back(weight.given +
                                  did_you_mean(weight.name, std::vector<std::string>(own.begin(), own.end())));
    }
  }
  TORCH_CHECK_VALUE(report.complete(), report.to_string());
  return names;
}

}  // namespace bellows::models
