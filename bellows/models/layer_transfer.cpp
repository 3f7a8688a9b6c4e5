#include "bellows/models/layer_transfer.h"

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace bellows::models {

namespace {

/// A tensor name such as "encoder.layer.3.output.dense.weight", divided at the number of the layer.
struct LayerName {
  std::string list;  ///< "encoder.layer."
  int64_t layer = 0;
  std::string rest;  ///< ".output.dense.weight"
};

/// Divides a name at its first number; nothing if there is none after a list's name.
std::optional<LayerName> layer_name(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const char* const begin = name.data() + dot + 1;
    const char* const end = name.data() + name.size();
    int64_t layer = 0;
    const auto [stop, error] = std::from_chars(begin, end, layer);
    if (error == std::errc() && layer >= 0 && stop != end && *stop == '.')
      return LayerName{name.substr(0, dot + 1), layer, std::string(stop, end)};
  }
  return std::nullopt;
}

/// The layers of one list, each with the shapes of its tensors.
using Shapes = std::map<std::string, std::vector<int64_t>>;
using LayerShapes = std::map<int64_t, Shapes>;

bool are_alike(const LayerShapes& layers) {
  const bool counted = layers.rbegin()->first + 1 == static_cast<int64_t>(layers.size());
  return counted && std::ranges::all_of(layers, [&](const auto& entry) { return entry.second == layers.at(0); });
}

struct LayerList {
  std::string name;
  int64_t count = 0;
};

LayerList layer_list(const Model& model) {
  std::map<std::string, LayerShapes> lists;
  for (const auto& [name, tensor] : model.state_dict()) {
    if (const auto parts = layer_name(name)) lists[parts->list][parts->layer][parts->rest] = tensor.sizes().vec();
  }
  std::erase_if(lists, [](const auto& entry) { return !are_alike(entry.second); });
  std::vector<std::string> names;
  names.reserve(lists.size());
  for (const auto& [name, layers] : lists) names.push_back(name + "N");
  TORCH_CHECK_VALUE(
      lists.size() == 1,
      "copy_layers: expected a model with one list of layers of the same shape, such as encoder.layer.N, but \"",
      model.name(), "\" has ", names.empty() ? std::string("none") : c10::Join(", ", names),
      ". Use a transformer such as bert-base, or copy the tensors in your own code.");
  return {lists.begin()->first, static_cast<int64_t>(lists.begin()->second.size())};
}

std::string without_base(const std::string& name) {
  for (const std::string_view prefix : {"bert.", "distilbert.", "transformer."}) {
    // "transformer.layer.0" is DistilBERT's list of layers, and "transformer.h.0" is GPT-2's with its base model.
    const bool is_list = prefix == "transformer." && name.starts_with("transformer.layer.");
    if (name.starts_with(prefix) && !is_list) return name.substr(prefix.size());
  }
  return name;
}

/// BERT's names and DistilBERT's names of the same weights.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> distilbert_names = {
    {{".attention.self.query.", ".attention.q_lin."},
     {".attention.self.key.", ".attention.k_lin."},
     {".attention.self.value.", ".attention.v_lin."},
     {".attention.output.dense.", ".attention.out_lin."},
     {".attention.output.LayerNorm.", ".sa_layer_norm."},
     {".intermediate.dense.", ".ffn.lin1."},
     {".output.dense.", ".ffn.lin2."},
     {".output.LayerNorm.", ".output_layer_norm."},
     {"encoder.layer.", "transformer.layer."},
     {"cls.predictions.transform.dense.", "vocab_transform."},
     {"cls.predictions.transform.LayerNorm.", "vocab_layer_norm."},
     {"cls.predictions.bias", "vocab_projector.bias"}}};

std::string distilbert_name(std::string name) {
  for (const auto& [bert, distilbert] : distilbert_names) {
    if (const size_t at = name.find(bert); at != std::string::npos) name.replace(at, bert.size(), distilbert);
  }
  return name;
}

constexpr const char* position_embeddings = "embeddings.position_embeddings.weight";

/// The teacher's tensors by the names that a student of this kind uses, without the prefix of the base model.
std::map<std::string, at::Tensor> teacher_tensors(const Model& teacher, bool for_distilbert) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : teacher.state_dict()) {
    const std::string plain = without_base(name);
    tensors[for_distilbert ? distilbert_name(plain) : plain] = tensor.detach();
  }
  const auto types = tensors.find("embeddings.token_type_embeddings.weight");
  if (for_distilbert && types != tensors.end() && tensors.contains(position_embeddings))
    tensors[position_embeddings] = tensors[position_embeddings] + types->second[0];
  return tensors;
}

void check_layers(const std::vector<int64_t>& layers, int64_t own, int64_t teachers) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(layers.size()) == own,
                    "copy_layers: expected one teacher layer for each of the student's ", own, " layers, got ",
                    layers.size(), " (", c10::Join(", ", layers), ").");
  for (const int64_t layer : layers) {
    TORCH_CHECK_VALUE(layer >= 0 && layer < teachers, "copy_layers: the teacher has layers 0 to ", teachers - 1,
                      ", got layer ", layer, ".");
  }
}

/// The teacher's tensor for a tensor of a student's layer.
at::Tensor layer_tensor(const std::map<std::string, at::Tensor>& tensors, const std::string& source,
                        const std::string& name, const at::Tensor& own) {
  const auto found = tensors.find(source);
  TORCH_CHECK_VALUE(found != tensors.end(), "copy_layers: the teacher has no tensor \"", source,
                    "\" for the student's \"", name,
                    "\". Both models need the same architecture, or a BERT and a DistilBERT.");
  TORCH_CHECK_VALUE(found->second.sizes() == own.sizes(), "copy_layers: expected \"", name, "\" of the shape ",
                    found->second.sizes(), " that the teacher has, got ", own.sizes(),
                    ". Layers can only be copied between models of the same width.");
  return found->second;
}

}  // namespace

std::string LayerTransfer::to_string(int64_t teacher_layers) const {
  std::string text = c10::str("layers ", c10::Join(", ", layers), " of ", teacher_layers, ": ", copied.size(),
                              " tensors copied, ", kept.size(), " kept");
  if (!kept.empty()) text += " (" + c10::Join(", ", kept) + ")";
  return text;
}

int64_t layer_count(const Model& model) {
  return layer_list(model).count;
}

std::vector<int64_t> every_second_layer(int64_t count, int64_t teacher_layers) {
  TORCH_CHECK_VALUE(2 * count - 1 <= teacher_layers, "every_second_layer: ", count,
                    " layers need a teacher with at least ", 2 * count - 1, " layers, got ", teacher_layers,
                    ". List the layers instead.");
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < count; ++i) layers.push_back(2 * i);
  return layers;
}

LayerTransfer copy_layers(const Model& student, const Model& teacher, const std::vector<int64_t>& layers) {
  const LayerList own = layer_list(student), theirs = layer_list(teacher);
  check_layers(layers, own.count, theirs.count);
  const bool distilled =
      without_base(own.name) == "transformer.layer." && without_base(theirs.name) == "encoder.layer.";
  const std::map<std::string, at::Tensor> tensors = teacher_tensors(teacher, distilled);
  const std::string list = distilled ? "transformer.layer." : without_base(theirs.name);
  LayerTransfer result{.layers = layers, .copied = {}, .kept = {}};
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // complete before the first copy
  for (const auto& [name, tensor] : student.state_dict()) {
    const auto parts = layer_name(name);
    at::Tensor source;
    if (parts && parts->list == own.name) {
      source =
          layer_tensor(tensors, c10::str(list, layers[static_cast<size_t>(parts->layer)], parts->rest), name, tensor);
    } else if (const auto found = tensors.find(without_base(name)); found != tensors.end()) {
      if (found->second.sizes() == tensor.sizes()) source = found->second;
    }
    (source.defined() ? result.copied : result.kept).push_back(name);
    if (source.defined()) copies.emplace_back(tensor, source);
  }
  const c10::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
  return result;
}

}  // namespace bellows::models
