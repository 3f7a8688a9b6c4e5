#include <algorithm>

#include "bellows/core/text.h"
#include "bellows/serve/tensor_types.h"
#include "cli/deploy/deployment.h"

namespace bellows::cli {

namespace {

using runtime::TensorInfo;

std::string tensor_text(const char* field, const TensorInfo& info, const std::string& name, bool batched) {
  std::string dims;
  for (size_t axis = batched ? 1 : 0; axis < info.sizes.size(); ++axis)
    dims += (dims.empty() ? "" : ", ") + std::to_string(info.sizes[axis]);
  return std::string(field) + " {\n  name: \"" + name + "\"\n  data_type: TYPE_" +
         std::string(serve::type_name(info.dtype)) + "\n  dims: [ " + dims + " ]\n}\n";
}

/// A request with zeros, so that the first client does not wait for kernels. Its sizes must be known.
std::string warmup_text(const std::vector<TensorInfo>& inputs, const std::vector<std::string>& names, bool batched) {
  std::string text = "model_warmup {\n  name: \"zeros\"\n  batch_size: " + std::to_string(batched ? 1 : 0) + "\n";
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::string dims;
    for (size_t axis = batched ? 1 : 0; axis < inputs[i].sizes.size(); ++axis) {
      if (inputs[i].sizes[axis] < 0) return "";
      dims += (dims.empty() ? "" : ", ") + std::to_string(inputs[i].sizes[axis]);
    }
    text += "  inputs {\n    key: \"" + names[i] + "\"\n    value { data_type: TYPE_" +
            std::string(serve::type_name(inputs[i].dtype)) + " dims: [ " + dims + " ] zero_data: true }\n  }\n";
  }
  return text + "}\n";
}

}  // namespace

std::string triton_config(const std::string& name, const std::string& backend, int64_t max_batch_size, bool positional,
                          const std::vector<TensorInfo>& inputs, const std::vector<TensorInfo>& outputs) {
  const bool batched = max_batch_size > 0;
  std::vector<std::string> names;
  for (size_t i = 0; i < inputs.size(); ++i)
    names.push_back(positional ? "INPUT__" + std::to_string(i) : inputs[i].name);
  std::string text = "name: \"" + name + "\"\n";
  if (!backend.empty()) text += "backend: \"" + backend + "\"\n";
  text += "max_batch_size: " + std::to_string(max_batch_size) + "\n";
  for (size_t i = 0; i < inputs.size(); ++i) text += tensor_text("input", inputs[i], names[i], batched);
  for (size_t i = 0; i < outputs.size(); ++i)
    text += tensor_text("output", outputs[i], positional ? "OUTPUT__" + std::to_string(i) : outputs[i].name, batched);
  if (batched) text += "dynamic_batching { }\n";
  text += "instance_group {\n  count: 1\n  kind: KIND_CPU\n}\n";
  return text + warmup_text(inputs, names, batched);
}

}  // namespace bellows::cli
