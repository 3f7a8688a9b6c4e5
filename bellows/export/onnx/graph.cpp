#include "bellows/export/onnx/graph.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace bellows::onnx_export {

namespace {

/// A text that is equal only for equal attributes.
std::string text_of(const Attribute& attribute) {
  std::string text = attribute.name + "=";
  const auto add = [&](const auto& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);  // exact, unlike a decimal number
  };
  std::visit(
      [&](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_arithmetic_v<Value>) {
          add(value);
        } else if constexpr (std::is_same_v<Value, std::string>) {
          text += value;
        } else if constexpr (std::is_same_v<Value, TensorData>) {
          add(value.type);
          text.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
        } else {
          for (const auto& one : value) add(one);
        }
      },
      attribute.value);
  return text + ";";
}

}  // namespace

size_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::uint8:
    case ElementType::int8:
    case ElementType::boolean:
      return 1;
    case ElementType::int16:
    case ElementType::float16:
    case ElementType::bfloat16:
      return 2;
    case ElementType::float32:
    case ElementType::int32:
      return 4;
    case ElementType::int64:
    case ElementType::float64:
      return 8;
    case ElementType::undefined:
      break;
  }
  return 0;
}

std::string GraphBuilder::reserve(const std::string& name) {
  std::string result = name;
  while (names_.contains(result)) result = name + "_" + std::to_string(++names_[name]);
  names_.emplace(result, 0);
  return result;
}

std::vector<std::string> GraphBuilder::add(const std::string& op, std::vector<std::string> inputs,
                                           std::vector<Attribute> attributes, size_t outputs) {
  std::string key = op + "(";
  for (const std::string& input : inputs) key += input + ",";
  for (const Attribute& attribute : attributes) key += text_of(attribute);
  key += std::to_string(outputs);
  const auto [known, fresh] = known_.try_emplace(std::move(key));
  if (!fresh) return known->second;
  const std::string name = reserve(scope_.empty() ? op : scope_ + "/" + op);
  Node node{.op = op, .name = name, .inputs = std::move(inputs), .outputs = {}, .attributes = std::move(attributes)};
  for (size_t i = 0; i < outputs; ++i)
    node.outputs.push_back(reserve(name + (i == 0 ? "_out" : "_out" + std::to_string(i))));
  known->second = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return known->second;
}

std::string GraphBuilder::node(const std::string& op, std::vector<std::string> inputs,
                               std::vector<Attribute> attributes) {
  return add(op, std::move(inputs), std::move(attributes), 1)[0];
}

std::string GraphBuilder::operator_of(const std::string& value) const {
  for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
    if (std::find(node->outputs.begin(), node->outputs.end(), value) != node->outputs.end()) return node->op;
  }
  return {};
}

void GraphBuilder::add_output(ValueInfo info, const std::string& value) {
  graph_.nodes.push_back({.op = "Identity",
                          .name = reserve(info.name + "/Identity"),
                          .inputs = {value},
                          .outputs = {info.name},
                          .attributes = {}});
  graph_.outputs.push_back(std::move(info));
}

std::string GraphBuilder::initializer(const std::string& name, TensorData data) {
  std::string used = reserve(name);
  graph_.initializers.push_back({used, std::move(data)});
  return used;
}

std::string GraphBuilder::constant(ElementType type, std::vector<int64_t> sizes, const std::string& bytes) {
  std::string key = std::to_string(static_cast<int>(type)) + ":";
  for (const int64_t size : sizes) key += std::to_string(size) + ",";
  const auto [known, fresh] = constants_.try_emplace(key + ":" + bytes);
  if (fresh) {
    const auto owner = std::make_shared<const std::string>(bytes);
    known->second = initializer("constant", {.type = type,
                                             .sizes = std::move(sizes),
                                             .owner = owner,
                                             .bytes = std::as_bytes(std::span(owner->data(), owner->size()))});
  }
  return known->second;
}

std::string GraphBuilder::integers(const std::vector<int64_t>& values) {
  std::string bytes(values.size() * sizeof(int64_t), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return constant(ElementType::int64, {static_cast<int64_t>(values.size())}, bytes);
}

std::string GraphBuilder::integer(int64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return constant(ElementType::int64, {}, bytes);
}

namespace {

/// Lets the node that computes an output write it directly, without an Identity node.
void remove_identities(Graph& graph) {
  std::map<std::string, std::string> renamed;
  std::set<std::string> fixed;
  for (const ValueInfo& input : graph.inputs) fixed.insert(input.name);
  for (const Initializer& one : graph.initializers) fixed.insert(one.name);
  std::erase_if(graph.nodes, [&](const Node& node) {
    if (node.op != "Identity" || fixed.contains(node.inputs[0]) || renamed.contains(node.inputs[0])) return false;
    const bool output = std::any_of(graph.outputs.begin(), graph.outputs.end(),
                                    [&](const ValueInfo& one) { return one.name == node.outputs[0]; });
    if (output) renamed[node.inputs[0]] = node.outputs[0];
    return output;
  });
  const auto rename = [&](std::string& name) {
    const auto found = renamed.find(name);
    if (found != renamed.end()) name = found->second;
  };
  for (Node& node : graph.nodes) {
    for (std::string& name : node.inputs) rename(name);
    for (std::string& name : node.outputs) rename(name);
  }
}

}  // namespace

Graph GraphBuilder::finish() && {
  remove_identities(graph_);
  std::set<std::string> needed;
  for (const ValueInfo& output : graph_.outputs) needed.insert(output.name);
  std::vector<Node> kept;
  for (size_t i = graph_.nodes.size(); i-- > 0;) {
    Node& node = graph_.nodes[i];
    const bool used = std::any_of(node.outputs.begin(), node.outputs.end(),
                                  [&](const std::string& output) { return needed.contains(output); });
    if (!used) continue;
    needed.insert(node.inputs.begin(), node.inputs.end());
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  graph_.nodes = std::move(kept);
  std::erase_if(graph_.initializers, [&](const Initializer& one) { return !needed.contains(one.name); });
  return std::move(graph_);
}

}  // namespace bellows::onnx_export
