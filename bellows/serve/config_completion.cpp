#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/serve/model_config.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

using runtime::TensorInfo;

std::vector<std::string> names_of(const std::vector<TensorInfo>& infos) {
  std::vector<std::string> names;
  names.reserve(infos.size());
  for (const TensorInfo& info : infos) names.push_back(info.name);
  return names;
}

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Returns 1 for "OUTPUT__1".
std::optional<size_t> position_of(const std::string& name) {
  const size_t at = name.rfind("__");
  if (at == std::string::npos) return std::nullopt;
  size_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + 2, end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

/// Compares one list of the configuration, inputs or outputs, with that of the model.
class Matching {
 public:
  Matching(const char* kind, const std::vector<TensorInfo>& infos, bool batched)
      : kind_(kind), infos_(infos), batched_(batched) {}

  /// Describes a tensor of the model without its batch axis.
  TensorSpec derived(const TensorInfo& info) const {
    TORCH_CHECK_VALUE(info.dtype != c10::ScalarType::Undefined, "the file states no dtypes and sizes of its ", kind_,
                      "s. Describe them in config.pbtxt: ", kind_, " [{ name: \"", info.name,
                      "\" data_type: TYPE_FP32 dims: [ … ] }].");
    TORCH_CHECK_VALUE(!type_name(info.dtype).empty(), kind_, " \"", info.name, "\" has the dtype ", info.dtype,
                      ", which the protocol does not support.");
    TensorSpec spec{.name = info.name, .dtype = info.dtype, .dims = info.sizes};
    if (batched_) {
      check_batch_axis(info);
      spec.dims.erase(spec.dims.begin());
    }
    return spec;
  }

  /// Describes all tensors of the model except for these.
  std::vector<TensorSpec> derived_without(const std::vector<TensorSpec>& hidden) const {
    std::vector<TensorSpec> specs;
    for (const TensorInfo& info : infos_) {
      if (std::ranges::find(hidden, info.name, &TensorSpec::name) == hidden.end()) specs.push_back(derived(info));
    }
    return specs;
  }

  /// Returns the index of the model's tensor that each spec describes.
  std::vector<size_t> match(const std::vector<TensorSpec>& specs) const {
    std::vector<size_t> order;
    for (const TensorSpec& spec : specs) {
      const size_t index = find(spec);
      TORCH_CHECK_VALUE(std::ranges::find(order, index) == order.end(), "config.pbtxt describes ", kind_, " \"",
                        infos_[index].name, "\" of the model twice.");
      check(spec, infos_[index]);
      order.push_back(index);
    }
    return order;
  }

 private:
  void check_batch_axis(const TensorInfo& info) const {
    TORCH_CHECK_VALUE(
        !info.sizes.empty() && info.sizes.front() < 0, kind_, " \"", info.name, "\" has the sizes ",
        shape_text(info.sizes),
        ", so its first axis is no batch axis. Set max_batch_size to 0, or export the model with a dynamic "
        "first axis.");
  }

  size_t find(const TensorSpec& spec) const {
    const auto found = std::ranges::find(infos_, spec.name, &TensorInfo::name);
    if (found != infos_.end()) return static_cast<size_t>(found - infos_.begin());
    const auto position = position_of(spec.name);
    const std::vector<std::string> names = names_of(infos_);
    TORCH_CHECK_VALUE(position && *position < infos_.size(), "config.pbtxt describes ", kind_, " \"", spec.name,
                      "\", which the model does not have. ", kind_, "s of the model: ", list_text(names), ".",
                      did_you_mean(spec.name, names));
    return *position;
  }

  void check(const TensorSpec& spec, const TensorInfo& info) const {
    if (info.dtype == c10::ScalarType::Undefined) return;
    TORCH_CHECK_VALUE(spec.dtype == info.dtype, kind_, " \"", spec.name, "\": config.pbtxt states the data type ",
                      config_type_name(spec.dtype), ", but the model has ", info.dtype, ".");
    if (batched_) check_batch_axis(info);
    const std::vector<int64_t> sizes(info.sizes.begin() + (batched_ ? 1 : 0), info.sizes.end());
    const bool fits = std::ranges::equal(
        spec.dims, sizes, [](int64_t stated, int64_t own) { return stated == own || stated < 0 || own < 0; });
    TORCH_CHECK_VALUE(fits, kind_, " \"", spec.name, "\": config.pbtxt states the dims ", shape_text(spec.dims),
                      ", but the model has ", shape_text(sizes), batched_ ? " after the batch axis." : ".");
  }

  const char* kind_;
  const std::vector<TensorInfo>& infos_;
  bool batched_;
};

/// The inputs and outputs that sequence batching provides instead of clients.
std::pair<std::vector<TensorSpec>, std::vector<TensorSpec>> hidden_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> inputs, outputs;
  if (!config.sequences) return {inputs, outputs};
  for (const SequenceControl& control : config.sequences->controls)
    inputs.push_back({.name = control.input, .dtype = control.dtype, .dims = {1}});
  for (const SequenceState& state : config.sequences->states) {
    inputs.push_back({.name = state.input, .dtype = state.dtype, .dims = state.dims});
    outputs.push_back({.name = state.output, .dtype = state.dtype, .dims = state.dims});
  }
  return {inputs, outputs};
}

std::vector<TensorSpec> joined(std::vector<TensorSpec> first, const std::vector<TensorSpec>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TensorOrder complete_model_config(ModelConfig& config, const runtime::InferenceModel& model) {
  const bool batched = config.max_batch_size > 0;
  const Matching inputs("input", model.inputs(), batched), outputs("output", model.outputs(), batched);
  const auto [hidden_inputs, hidden_outputs] = hidden_tensors(config);
  if (config.inputs.empty()) config.inputs = inputs.derived_without(hidden_inputs);
  if (config.outputs.empty()) config.outputs = outputs.derived_without(hidden_outputs);
  TensorOrder order;
  const std::vector<size_t> places = inputs.match(joined(config.inputs, hidden_inputs));
  TORCH_CHECK_VALUE(places.size() == model.inputs().size(), "config.pbtxt describes ", places.size(),
                    " inputs, but the model has ", model.inputs().size(), ": ", list_text(names_of(model.inputs())),
                    ".");
  order.inputs.resize(places.size());
  for (size_t i = 0; i < places.size(); ++i) order.inputs[places[i]] = i;
  order.outputs = outputs.match(joined(config.outputs, hidden_outputs));
  return order;
}

}  // namespace bellows::serve
