#include "bellows/models/exported/pytree.h"

#include <nlohmann/json.hpp>

#include "bellows/io/tables/json_impl.h"

namespace bellows::models::exported {

namespace {

constexpr int kDeepestTree = 100;

/// The structure is JSON in a text: a version, and a tree of {type, context, children_spec}.
Json tree_of(const Json& text, const char* what) {
  const Json tree = io::parse_shallow_json(text.get_ref<const std::string&>(), what, kDeepestTree);
  TORCH_CHECK_VALUE(tree.is_array() && tree.size() == 2, what, ": expected a version and a tree, found ",
                    io::shown_json(tree), ".");
  return tree.at(1);
}

/// The keys of a dict or of a class with fields; null for tuples and lists.
Json keys_of(const Json& tree) {
  const Json& context = tree.at("context");
  const size_t count = tree.at("children_spec").size();
  if (!context.is_string()) return {};
  const Json keys = io::parse_shallow_json(context.get_ref<const std::string&>(), "the keys of a dict", kDeepestTree);
  if (!keys.is_array() || keys.size() != count) return {};
  for (const Json& key : keys) {
    if (!key.is_string()) return {};
  }
  return keys;
}

void add_leaves(const Json& tree, const TreeLeaf& at, std::vector<TreeLeaf>& leaves) {
  if (tree.at("type").is_null()) {
    leaves.push_back(at);
    return;
  }
  const Json keys = keys_of(tree);
  const Json& children = tree.at("children_spec");
  for (size_t i = 0; i < children.size(); ++i) {
    const std::string key = keys.is_null() ? std::to_string(i) : keys[i].get<std::string>();
    const std::string index = keys.is_null() ? key : "'" + key + "'";
    add_leaves(children[i], {at.name.empty() ? key : at.name + "." + key, at.path + "[" + index + "]"}, leaves);
  }
}

/// The names of forward's arguments, those of the keyword arguments last; fewer if the exporter did not write them.
std::vector<std::string> argument_names(const Json& call) {
  std::vector<std::string> names;
  if (!call.contains("forward_arg_names") || !call.at("forward_arg_names").is_array()) return names;
  for (const Json& name : call.at("forward_arg_names")) names.push_back(name.get<std::string>());
  return names;
}

}  // namespace

std::vector<TreeLeaf> input_leaves(const Json& call) {
  const Json tree = tree_of(call.at("in_spec"), "in_spec");
  const Json& parts = tree.at("children_spec");
  TORCH_CHECK_VALUE(parts.size() == 2, "in_spec: expected positional and keyword arguments, found ", parts.size(),
                    " parts.");
  const std::vector<std::string> names = argument_names(call);
  const Json keys = keys_of(parts[1]);
  const Json &positional = parts[0].at("children_spec"), &keyword = parts[1].at("children_spec");
  std::vector<TreeLeaf> leaves;
  for (size_t i = 0; i < positional.size(); ++i) {
    const std::string name = i < names.size() ? names[i] : "input_" + std::to_string(i);
    add_leaves(positional[i], {name, "L['" + name + "']"}, leaves);
  }
  for (size_t i = 0; i < keyword.size(); ++i) {
    const std::string name = keys.is_null() ? "keyword_" + std::to_string(i) : keys[i].get<std::string>();
    add_leaves(keyword[i], {name, "L['" + name + "']"}, leaves);
  }
  return leaves;
}

std::vector<TreeLeaf> output_leaves(const Json& call) {
  std::vector<TreeLeaf> leaves;
  add_leaves(tree_of(call.at("out_spec"), "out_spec"), {}, leaves);
  for (TreeLeaf& leaf : leaves) {
    if (leaf.name.empty()) {
      leaf.name = "output";
    } else if (leaf.name[0] >= '0' && leaf.name[0] <= '9') {
      leaf.name = "output_" + leaf.name;
    }
  }
  return leaves;
}

}  // namespace bellows::models::exported
