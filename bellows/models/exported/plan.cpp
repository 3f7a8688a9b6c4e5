#include "bellows/models/exported/plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bellows/io/tables/json_impl.h"
#include "bellows/models/exported/arguments.h"

namespace bellows::models::exported {

namespace {

constexpr std::string_view kOperators = "torch.ops.", kGraphOperators = "torch.ops.higher_order.";

struct GraphOperatorRow {
  std::string_view name;
  GraphOperator kind;
  size_t arguments;  ///< at least
};
constexpr GraphOperatorRow graph_operators[] = {{"cond", GraphOperator::cond, 4},
                                                {"while_loop", GraphOperator::while_loop, 4},
                                                {"scan", GraphOperator::scan, 4},
                                                {"wrap_with_set_grad_enabled", GraphOperator::grad_mode, 2},
                                                {"wrap_with_autocast", GraphOperator::autocast, 5}};

/// The names of the classes in a node's nn_module_stack, such as "Net,Block,torch.nn.modules.dropout.Dropout".
std::string module_classes(const Json& node) {
  if (!node.contains("metadata") || !node.at("metadata").contains("nn_module_stack")) return "";
  const Json& stack = node.at("metadata").at("nn_module_stack");
  return stack.is_string() ? stack.get<std::string>() : "";
}

class GraphBuilder {
 public:
  std::shared_ptr<Graph> build(const Json& graph) {
    for (const Json& input : graph.at("inputs")) add_input(input);
    const Json& nodes = graph.at("nodes");
    graph_->nodes.reserve(nodes.size());
    for (const Json& node : nodes) add_node(node);
    for (const Json& output : graph.at("outputs")) graph_->outputs.push_back(argument_of(output, nullptr, values_));
    graph_->slots = values_.size();
    find_last_uses(*graph_);
    return graph_;
  }

 private:
  /// The name of a value: {"name": …} or {"as_name": …}; "" for constants.
  static std::string value_name(const Json& value) {
    if (!value.is_object()) return "";
    for (const char* key : {"name", "as_name"}) {
      if (value.contains(key)) return value.at(key).get<std::string>();
    }
    return "";
  }

  void add_input(const Json& input) {
    const auto& [kind, value] = alternative_of(input);
    TORCH_CHECK_VALUE(kind != "as_custom_obj", "the program uses the custom object ",
                      io::printable(value.value("class_fqn", ""), 100), ", which is not supported.");
    const std::string name = value_name(value);
    graph_->inputs.push_back(name.empty() ? -1 : values_.define(name));
    graph_->input_names.push_back(name);
  }

  void add_node(const Json& json) {
    const std::string target = json.at("target").get<std::string>();
    const std::string name =
        json.contains("name") && json.at("name").is_string() ? json.at("name").get<std::string>() : "";
    const std::string line = source_line(json);
    Node node{.target = target,
              .where = "node " + plain_text(name.empty() ? target : name) + " (" + plain_text(target) +
                       (line.empty() ? "" : ", " + line) + ")"};
    node.module_class = module_classes(json);
    try {
      set_operation(node, json.at("inputs"));
      for (const Json& output : json.at("outputs")) node.results.push_back(result_of(output));
      check_results(node);
    } catch (const Json::exception& error) {
      TORCH_CHECK_VALUE(false, node.where, ": ", error.what());
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      TORCH_CHECK_VALUE(false, message.starts_with("node ") ? "" : node.where + ": ", message);
    }
    graph_->nodes.push_back(std::move(node));
  }

  void set_operation(Node& node, const Json& inputs) {
    if (node.target.starts_with(kGraphOperators)) {
      set_graph_operator(node, inputs);
    } else if (node.target.starts_with(kOperators)) {
      set_operator(node, inputs);
    } else {
      node.function = find_size_function(node.target);
      TORCH_CHECK_VALUE(node.function, "this function is not supported. Export the model without it.");
      for (const Json& input : inputs) node.arguments.push_back(argument_of(input.at("arg"), nullptr, values_));
      TORCH_CHECK_VALUE(node.arguments.size() == node.function->arguments, "expected ", node.function->arguments,
                        " arguments, found ", node.arguments.size(), ".");
    }
  }

  void set_graph_operator(Node& node, const Json& inputs) {
    const std::string_view name = std::string_view(node.target).substr(kGraphOperators.size());
    const auto* const row = std::find_if(std::begin(graph_operators), std::end(graph_operators),
                                         [&](const GraphOperatorRow& one) { return one.name == name; });
    TORCH_CHECK_VALUE(row != std::end(graph_operators), "the higher-order operator ", plain_text(name),
                      " is not supported. Supported ones are cond, while_loop, scan, and regions with "
                      "torch.no_grad and torch.autocast.");
    node.graph_operator = row->kind;
    for (const Json& input : inputs) node.arguments.push_back(argument_of(input.at("arg"), nullptr, values_));
    TORCH_CHECK_VALUE(node.arguments.size() >= row->arguments, "expected at least ", row->arguments,
                      " arguments, found ", node.arguments.size(), ".");
    const auto has_graph = [&](size_t i) {
      TORCH_CHECK_VALUE(node.arguments[i].graph, "expected a graph as argument ", i, ".");
    };
    switch (row->kind) {
      case GraphOperator::cond:
        has_graph(1);
        has_graph(2);
        break;
      case GraphOperator::while_loop:
        has_graph(1);
        [[fallthrough]];
      case GraphOperator::scan:
        has_graph(0);
        break;
      case GraphOperator::grad_mode:
        has_graph(1);
        break;
      default:
        has_graph(4);
    }
  }

  /// torch.ops.aten.add.Tensor is the operator aten::add with the overload Tensor.
  void set_operator(Node& node, const Json& inputs) {
    const std::string_view name = std::string_view(node.target).substr(kOperators.size());
    const size_t space = name.find('.'), dot = name.rfind('.');
    TORCH_CHECK_VALUE(space != std::string_view::npos && dot > space, "invalid name of an operator.");
    const std::string qualified =
        std::string(name.substr(0, space)) + "::" + std::string(name.substr(space + 1, dot - space - 1));
    const std::string overload(name.substr(dot + 1));
    node.op = c10::Dispatcher::singleton().findSchema({qualified, overload == "default" ? "" : overload});
    TORCH_CHECK_VALUE(
        node.op, "the operator ", plain_text(qualified), ".", plain_text(overload),
        " is not registered in this process. Load the library that registers it (a plugin, for example).");
    std::map<std::string, const Json*> given;
    for (const Json& input : inputs) given[input.at("name").get<std::string>()] = &input.at("arg");
    for (const c10::Argument& formal : node.op->schema().arguments()) {
      const auto found = given.find(formal.name());
      if (found != given.end()) {
        add_argument(node, formal, *found->second);
        given.erase(found);
      } else {
        TORCH_CHECK_VALUE(formal.default_value(), "the argument ", formal.name(), " is missing.");
        node.arguments.push_back({.constant = *formal.default_value(), .type = formal.type()});
      }
    }
    TORCH_CHECK_VALUE(given.empty(), "the operator has no argument ", io::printable(given.begin()->first, 100),
                      " in this version of libtorch.");
    node.checks_metadata = node.target == "torch.ops.aten._assert_tensor_metadata.default";
  }

  void add_argument(Node& node, const c10::Argument& formal, const Json& value) {
    Argument argument = argument_of(value, formal.type(), values_);
    TORCH_CHECK_VALUE(!argument.graph, "the argument ", formal.name(), " cannot be a graph.");
    node.arguments.push_back(std::move(argument));
  }

  Result result_of(const Json& output) {
    const auto& [kind, value] = alternative_of(output);
    if (kind == "as_none") return {.slots = {-1}};
    Result result{.is_list = kind == "as_tensors"};
    if (result.is_list) {
      for (const Json& one : value) result.slots.push_back(values_.define(one.at("name").get<std::string>()));
      return result;
    }
    if (kind == "as_optional_tensor" && value.is_object() && value.contains("as_none")) return {.slots = {-1}};
    const std::string name = value_name(kind == "as_optional_tensor" ? alternative_of(value).value : value);
    result.slots.push_back(name.empty() ? -1 : values_.define(name));
    return result;
  }

  static void check_results(const Node& node) {
    if (!node.op) return;
    const size_t most = node.op->schema().returns().size();
    TORCH_CHECK_VALUE(node.results.size() <= most, "expected at most ", most, " results, found ", node.results.size(),
                      ".");
  }

  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  ValueNames values_;
};

template <class Visit>
void for_each_slot(const Argument& argument, const Visit& visit) {
  if (argument.slot >= 0) visit(static_cast<size_t>(argument.slot));
  for (const Argument& element : argument.elements) for_each_slot(element, visit);
}

}  // namespace

std::shared_ptr<Graph> build_graph(const Json& graph) {
  return GraphBuilder().build(graph);
}

/// What the backward pass needs of a value after its last use is held by autograd.
void find_last_uses(Graph& graph) {
  constexpr size_t never = SIZE_MAX;
  std::vector<size_t> last(graph.slots, never);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    node.last_uses.clear();
    for (const Result& result : node.results) {
      for (const int slot : result.slots) {
        if (slot >= 0) last[static_cast<size_t>(slot)] = i;
      }
    }
    for (const Argument& argument : node.arguments) for_each_slot(argument, [&](size_t slot) { last[slot] = i; });
  }
  for (const Argument& output : graph.outputs) for_each_slot(output, [&](size_t slot) { last[slot] = never; });
  for (size_t slot = 0; slot < last.size(); ++slot) {
    if (last[slot] != never) graph.nodes[last[slot]].last_uses.push_back(static_cast<int>(slot));
  }
}

}  // namespace bellows::models::exported
