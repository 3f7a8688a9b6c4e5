#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/models/exported/schema.h"
#include "bellows/models/exported/size_function.h"

namespace bellows::models::exported {

struct Graph;

/// An argument of a node: a constant, a value that was computed before, a list with such values, or a graph.
struct Argument {
  c10::IValue constant{};
  int slot = -1;  ///< of the value; -1: it is no single value
  bool is_list = false;
  std::vector<Argument> elements{};  ///< of a list with at least one value
  std::shared_ptr<Graph> graph{};
  c10::TypePtr type{};  ///< of the operator's parameter; null for functions on sizes
  bool fixed() const { return slot < 0 && !is_list && !graph; }
};

/// Where a result of a node goes. The slot -1 means that the result is not used.
struct Result {
  bool is_list = false;
  std::vector<int> slots{};
};

/// Operators whose arguments are graphs.
enum class GraphOperator { none, cond, while_loop, scan, grad_mode, autocast };

struct Node {
  std::string target;  ///< such as "torch.ops.aten.add.Tensor"
  std::string where;   ///< for errors: name of the node, and line of the Python code
  std::optional<c10::OperatorHandle> op{};
  const NamedSizeFunction* function = nullptr;
  GraphOperator graph_operator = GraphOperator::none;
  std::vector<Argument> arguments{};
  std::vector<Result> results{};
  std::vector<int> last_uses{};  ///< slots that are not used after this node
  /// Arguments that have another value in evaluation mode.
  std::vector<std::pair<size_t, c10::IValue>> evaluation{};
  std::string module_class{};     ///< classes of the modules that contain the node
  bool only_in_training = false;  ///< in evaluation mode, the result is the first argument
  bool checks_metadata = false;   ///< checks the dtype of an intermediate value, which autocast changes
};

/// A list of operators in the order of execution. Values are in numbered slots.
struct Graph {
  size_t slots = 0;
  std::vector<int> inputs{};  ///< slots; -1 for a constant
  std::vector<std::string> input_names{};
  std::vector<Node> nodes{};
  std::vector<Argument> outputs{};
};

/// Resolves all operators and arguments of a graph.
/// Throws: c10::ValueError or an exception of the JSON library if the graph is invalid or uses an unknown operator (the
///         message names the node and the line of Python code)
std::shared_ptr<Graph> build_graph(const Json& graph);

/// Sets Node::last_uses. Call it after the nodes or the outputs have changed.
void find_last_uses(Graph& graph);

/// Calls `visit` for each node, including the nodes of inner graphs.
template <class Visit>
void for_each_node(Graph& graph, const Visit& visit) {
  for (Node& node : graph.nodes) {
    visit(node);
    for (Argument& argument : node.arguments) {
      if (argument.graph) for_each_node(*argument.graph, visit);
    }
  }
}

/// Converts a value as Python does for a parameter of this type. For example, a number for a tensor becomes a wrapped
/// number.
/// Throws: c10::ValueError if the parameter cannot have this value
c10::IValue converted(const c10::IValue& value, const c10::TypePtr& type);

/// Runs the graph with libtorch's operators.
/// Params: inputs – of the graph, in order
/// Throws: exceptions of the operators. Those that derive from c10::Error name the node
std::vector<c10::IValue> run_graph(const Graph& graph, const std::vector<c10::IValue>& inputs, bool training);

}  // namespace bellows::models::exported
