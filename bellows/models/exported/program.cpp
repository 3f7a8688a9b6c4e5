#include "bellows/models/exported/program.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/io/tables/json_impl.h"
#include "bellows/models/exported/pytree.h"

namespace bellows::models::exported {

namespace {

constexpr int kDeepestProgram = 200;
constexpr int64_t kSchemaMajor = 8;
constexpr std::string_view kBatchCounter = "num_batches_tracked";

ExportedSize size_of(const Json& size, SizeNames& names) {
  const auto& [kind, value] = alternative_of(size);
  if (kind == "as_int") return {.fixed = integer_of(value)};
  const std::string text = value.at("expr_str").get<std::string>();
  try {
    return {.form = SizeExpression::parse(text, names)};
  } catch (const UnsupportedExpression&) {
    return {};  // any size; the operators check it
  }
}

/// Describes the tensor or the number of a user_input.
void describe_input(ExportedInput& input, const Json& argument, const Json& graph, SizeNames& names) {
  const auto& [kind, value] = alternative_of(argument);
  if (kind == "as_tensor") {
    input.is_tensor = true;
    const Json& meta = graph.at("tensor_values").at(value.at("name").get<std::string>());
    input.dtype = dtype_of(meta.at("dtype"));
    for (const Json& size : meta.at("sizes")) input.sizes.push_back(size_of(size, names));
  } else if (kind == "as_sym_int") {
    const Json& one =
        value.contains("as_name") ? graph.at("sym_int_values").at(value.at("as_name").get<std::string>()) : value;
    input.sizes.push_back(size_of(one, names));
  } else if (kind != "as_sym_float" && kind != "as_sym_bool") {
    TORCH_CHECK_VALUE(kind != "as_custom_obj", "input \"", input.name,
                      "\" is a custom object, which is not supported.");
    input.is_constant = true;
    input.constant_text = plain_text(value.dump(-1, ' ', true, Json::error_handler_t::replace));
    if (kind == "as_int") input.constant = integer_of(value);
    if (kind == "as_float") input.constant = float_of(value);
    if (kind == "as_bool") input.constant = value.get<bool>();
  }
}

std::string text_at(const Json& object, const char* key) {
  return object.at(key).get<std::string>();
}

}  // namespace

ExportedProgram::ExportedProgram(std::string_view json, std::string where) : where_(std::move(where)) {
  const Json document = io::parse_shallow_json(json, where_, kDeepestProgram);
  TORCH_CHECK_VALUE(document.is_object(), where_, ": expected a JSON object, found ",
                    document.is_discarded() ? "invalid JSON" : io::shown_json(document), ".");
  try {
    read(document);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, where_, ": the program is invalid: ", error.what());
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, where_, ": ", error.what_without_backtrace());
  }
}

void ExportedProgram::read(const Json& document) {
  const Json& version = document.at("schema_version");
  const int64_t major = integer_of(version.at("major")), minor = integer_of(version.at("minor"));
  TORCH_CHECK_VALUE(major == kSchemaMajor, "expected a program of schema version ", kSchemaMajor, ", found version ",
                    major, ".", minor, ". Export the model with PyTorch 2.8 to 2.11.");
  const Json& module = document.at("graph_module");
  graph_ = build_graph(module.at("graph"));
  SizeNames names;
  read_inputs(module);
  std::vector<ExportedInput> inputs;
  const Json& signature = module.at("signature").at("input_specs");
  const Json& call = module.at("module_call_graph").at(0).at("signature");
  const std::vector<TreeLeaf> leaves = input_leaves(call);
  for (size_t i = 0; i < signature.size(); ++i) {
    const auto& [kind, spec] = alternative_of(signature.at(i));
    if (kind != "user_input" && kind != "constant_input") continue;
    const size_t leaf = inputs.size();
    TORCH_CHECK_VALUE(leaf < leaves.size(), "the program has more inputs than its in_spec, which has ", leaves.size(),
                      ".");
    ExportedInput input{.name = leaves[leaf].name, .path = leaves[leaf].path, .graph_input = i};
    describe_input(input, spec.at(kind == "user_input" ? "arg" : "value"), module.at("graph"), names);
    inputs.push_back(std::move(input));
  }
  checks_ = InputChecks(std::move(inputs), std::move(names), document.value("range_constraints", Json::object()),
                        document.value("guards_code", Json::array()));
  read_outputs(module);
  move_updates_to_the_end();
  modes_ = find_modes(*graph_);
  find_module_types(module);
}

void ExportedProgram::read_inputs(const Json& module) {
  const Json& specs = module.at("signature").at("input_specs");
  TORCH_CHECK_VALUE(specs.size() == graph_->inputs.size(), "the signature has ", specs.size(),
                    " inputs, but the graph has ", graph_->inputs.size(), ".");
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto& [kind, spec] = alternative_of(specs.at(i));
    add_input(kind, spec, i);
  }
}

void ExportedProgram::add_input(const std::string& kind, const Json& spec, size_t index) {
  if (kind == "user_input" || kind == "constant_input") return;
  TORCH_CHECK_VALUE(kind != "custom_obj", "the program uses the custom object ",
                    io::printable(spec.value("custom_obj_name", ""), 100), ", which is not supported.");
  TORCH_CHECK_VALUE(kind == "parameter" || kind == "buffer" || kind == "tensor_constant", "inputs of the kind ",
                    io::printable(kind), " are not supported.");
  const std::string name = text_at(spec, (kind + "_name").c_str());
  bound_names_.emplace_back(index, name);
  if (kind == "parameter") parameters_.push_back(name);
  if (kind == "buffer") buffers_.push_back(name);
}

void ExportedProgram::read_outputs(const Json& module) {
  const Json& specs = module.at("signature").at("output_specs");
  TORCH_CHECK_VALUE(specs.size() == graph_->outputs.size(), "the signature has ", specs.size(),
                    " outputs, but the graph has ", graph_->outputs.size(), ".");
  const std::vector<TreeLeaf> leaves = output_leaves(module.at("module_call_graph").at(0).at("signature"));
  size_t leaf = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto& [kind, spec] = alternative_of(specs.at(i));
    if (kind == "buffer_mutation") {
      updates_.push_back({i, text_at(spec, "buffer_name")});
      continue;
    }
    TORCH_CHECK_VALUE(kind == "user_output", "outputs of the kind ", io::printable(kind), " are not supported.");
    TORCH_CHECK_VALUE(leaf < leaves.size(), "the program has more outputs than its out_spec, which has ", leaves.size(),
                      ".");
    const std::string& name = leaves[leaf++].name;
    const auto& [form, value] = alternative_of(spec.at("arg"));
    if (form == "as_none" || form == "as_string") continue;
    if (output_names_.empty() && form == "as_tensor") {
      const Json& metas = module.at("graph").at("tensor_values");
      const std::string tensor = text_at(value, "name");
      if (metas.contains(tensor)) output_dimensions_ = static_cast<int64_t>(metas.at(tensor).at("sizes").size());
    }
    output_names_.push_back(name);
    results_.push_back(i);
  }
  TORCH_CHECK_VALUE(!results_.empty(), "the program returns no tensors.");
}

/// A buffer that forward() assigns is written at the end of the graph. Autograd may have saved its old value, so the run
/// gets a copy of the buffer, and the buffer is written after the run.
void ExportedProgram::move_updates_to_the_end() {
  std::map<int, std::string> buffers;  // by slot
  for (const auto& [input, name] : bound_names_) {
    const bool is_buffer = std::find(buffers_.begin(), buffers_.end(), name) != buffers_.end();
    if (is_buffer && graph_->inputs[input] >= 0) buffers[graph_->inputs[input]] = name;
  }
  const auto is_output = [&](int slot) {
    return std::any_of(graph_->outputs.begin(), graph_->outputs.end(),
                       [&](const Argument& a) { return a.slot == slot; });
  };
  const auto counts_batches = [&](const Argument& argument) {
    const auto found = buffers.find(argument.slot);
    return found != buffers.end() && found->second.ends_with(kBatchCounter);
  };
  std::vector<Node>& nodes = graph_->nodes;
  while (!nodes.empty() && nodes.back().target == "torch.ops.aten.copy_.default") {
    const Node& last = nodes.back();
    const auto buffer = buffers.find(last.arguments[0].slot);
    const bool used = !last.results.empty() && !last.results[0].slots.empty() && is_output(last.results[0].slots[0]);
    if (buffer == buffers.end() || used) break;
    updates_.push_back({graph_->outputs.size(), buffer->second});
    graph_->outputs.push_back(last.arguments[1]);
    nodes.pop_back();
  }
  for (Node& node : nodes)
    node.only_in_training = node.target == "torch.ops.aten.add_.Tensor" && counts_batches(node.arguments[0]);
  for (const auto& [input, name] : bound_names_) {
    const auto updates = [&](const Update& update) { return update.buffer == name; };
    if (std::any_of(updates_.begin(), updates_.end(), updates)) cloned_.push_back(input);
  }
  find_last_uses(*graph_);
}

/// nn_module_stack is a text such as "L__self__,,net.Net;L__self___bn1,bn1,torch.nn.modules.batchnorm.BatchNorm2d".
void ExportedProgram::find_module_types(const Json& module) {
  std::map<std::string, std::string> known;
  for (const Json& node : module.at("graph").at("nodes")) {
    if (!node.contains("metadata") || !node.at("metadata").is_object()) continue;
    const Json& stack = node.at("metadata").value("nn_module_stack", Json());
    if (!stack.is_string()) continue;
    std::string_view rest = stack.get_ref<const std::string&>();
    while (!rest.empty()) {
      const std::string_view one = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(one.size() + 1, rest.size()));
      const size_t first = one.find(','), second = one.find(',', first + 1);
      if (first == std::string_view::npos || second == std::string_view::npos) continue;
      std::string name(one.substr(first + 1, second - first - 1));
      std::string type(one.substr(one.rfind('.') + 1));
      if (known.emplace(name, type).second) module_types_.emplace_back(std::move(name), std::move(type));
    }
  }
}

void ExportedProgram::bind(const ExportedTensors& tensors) {
  bound_.assign(graph_->inputs.size(), c10::IValue());
  for (const auto& [input, name] : bound_names_) bound_[input] = tensors.at(name);
  for (Update& update : updates_) update.tensor = tensors.at(update.buffer);
}

namespace {

void change_argument_device(Argument& argument, c10::Device from, c10::Device to) {
  if (argument.constant.isDevice() && argument.constant.toDevice() == from) argument.constant = to;
  for (Argument& element : argument.elements) change_argument_device(element, from, to);
}

}  // namespace

void ExportedProgram::change_device(c10::Device from, c10::Device to) {
  for_each_node(*graph_, [&](Node& node) {
    for (Argument& argument : node.arguments) change_argument_device(argument, from, to);
  });
}

std::vector<at::Tensor> ExportedProgram::forward(const std::vector<at::Tensor>& inputs, bool training) const {
  std::vector<c10::IValue> values = bound_;
  try {
    const std::vector<c10::IValue> given = checks_.values(inputs);
    for (size_t i = 0; i < given.size(); ++i) values[checks_.inputs()[i].graph_input] = given[i];
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, where_, ": ", error.what_without_backtrace());
  }
  for (const size_t input : cloned_) values[input] = values[input].toTensor().clone();
  const std::vector<c10::IValue> results = run_graph(*graph_, values, training);
  {
    const c10::NoGradGuard no_grad;
    for (const Update& update : updates_) {
      if (training || !update.buffer.ends_with(kBatchCounter)) update.tensor.copy_(results[update.output].toTensor());
    }
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(results_.size());
  for (const size_t result : results_) {
    const c10::IValue& value = results[result];
    outputs.push_back(value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar()));
  }
  return outputs;
}

}  // namespace bellows::models::exported
