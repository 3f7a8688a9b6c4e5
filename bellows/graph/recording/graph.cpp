#include "bellows/graph/recording/graph.h"

#include <algorithm>
#include <sstream>

namespace bellows::graph {
namespace {

/// Writes a graph line by line. A buffer's geometry is shown where it is made or first used, and where it is seen
/// differently.
class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), seen_(graph.origins().size()) {}

  std::string print() {
    const auto origins = graph_.origins();
    const auto made = std::count_if(origins.begin(), origins.end(), [](const auto& origin) { return origin.made; });
    out_ << "graph of " << graph_.nodes.size() << " operators, " << origins.size() - static_cast<size_t>(made)
         << " inputs, " << made << " new buffers\n";
    const DispatchState* before = nullptr;
    for (const Node& node : graph_.nodes) {
      if (const std::string change = before ? node.dispatch_state.difference(*before) : ""; !change.empty())
        out_ << "  # " << change << "\n";
      before = &node.dispatch_state;
      print_node(node);
    }
    return out_.str();
  }

 private:
  void print_node(const Node& node) {
    std::ostringstream arguments;
    std::swap(out_, arguments);
    const char* separator = "";
    for (const Argument& argument : node.arguments) {
      out_ << separator;
      print_argument(argument);
      separator = ", ";
    }
    std::swap(out_, arguments);
    out_ << "  ";
    separator = "";
    for (const Result& result : node.results) {
      out_ << separator;
      print_result(result);
      separator = ", ";
    }
    out_ << (node.results.empty() ? "" : " = ") << node.op->name << "(" << arguments.str() << ")";
    for (const BufferId buffer : node.written()) out_ << " writes %" << buffer;
    if (node.when != When::later) out_ << (node.when == When::now ? " [now]" : " [flush]");
    out_ << "\n";
  }

  void print_argument(const Argument& argument) {
    if (!argument.is_tensors()) {
      out_ << (argument.lifted ? "scalar " : "") << argument.constant;
      return;
    }
    const bool list = argument.kind != OperatorFacts::Kind::tensor;
    print_values(argument.tensors, list, [](const Value& value) -> const Value& { return value; });
  }

  void print_result(const Result& result) {
    if (!result.tensors) {
      out_ << "host";
      return;
    }
    print_values(result.outputs, result.list, [](const Output& output) -> const Value& { return output.value; });
  }

  template <class Items, class ValueOf>
  void print_values(const Items& items, bool list, const ValueOf& value_of) {
    if (list) out_ << "[";
    const char* separator = "";
    for (const auto& item : items) {
      out_ << separator;
      print_value(value_of(item));
      separator = ", ";
    }
    if (list) out_ << "]";
  }

  void print_value(const Value& value) {
    if (value.buffer == no_buffer) {
      out_ << "none";
    } else if (value.buffer == opaque_buffer) {
      out_ << "opaque";
    } else {
      out_ << "%" << value.buffer;
      Geometry& seen = seen_[value.buffer];
      if (seen == value.geometry) return;
      out_ << " " << value.geometry.text();
      seen = value.geometry;
    }
  }

  const Graph& graph_;
  std::vector<Geometry> seen_;
  std::ostringstream out_;
};

}  // namespace

std::vector<BufferId> Node::written() const {
  std::vector<BufferId> result;
  for (const int argument : op->writes) {
    for (const Value& value : arguments[argument].tensors) {
      if (value.buffer >= 0 && std::find(result.begin(), result.end(), value.buffer) == result.end())
        result.push_back(value.buffer);
    }
  }
  return result;
}

std::vector<Graph::Origin> Graph::origins() const {
  std::vector<Origin> result(nodes.empty() ? 0 : nodes.back().buffers_after);
  const auto note = [&](BufferId buffer, Origin origin) {
    if (buffer >= 0 && result[buffer].node < 0) result[buffer] = origin;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Argument& argument : nodes[i].arguments) {
      for (const Value& value : argument.tensors) note(value.buffer, {.node = static_cast<int>(i)});
    }
    for (const Result& node_result : nodes[i].results) {
      for (const Output& output : node_result.outputs)
        note(output.value.buffer, {.node = static_cast<int>(i), .made = output.made});
    }
  }
  return result;
}

std::string Graph::to_text() const {
  return Printer(*this).print();
}

}  // namespace bellows::graph
