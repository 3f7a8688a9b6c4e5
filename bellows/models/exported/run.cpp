// Runs the plan of an exported program. Each step reads no JSON and resolves no names.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <utility>

#include "bellows/models/exported/plan.h"

namespace bellows::models::exported {

namespace {

using Values = std::vector<c10::IValue>;

bool is_true(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item().toBool() : value.toBool();
}

Values joined(Values first, const Values& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
Values values_of_list(const c10::IValue& list) {
  TORCH_CHECK_VALUE(list.isList(), "expected a list of values, found ", list.tagKind(), ".");
  return list.toListRef().vec();
}

bool any_autocast() {
  return at::autocast::is_autocast_enabled(c10::kCPU) || at::autocast::is_autocast_enabled(c10::kCUDA);
}

/// Runs a region in another autocast mode. Restores the previous mode.
class ExportedAutocast {
 public:
  ExportedAutocast(c10::DeviceType device, const c10::IValue& dtype, bool enabled, const c10::IValue& cache)
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        cache_(at::autocast::is_autocast_cache_enabled()),
        dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    if (dtype.isInt()) at::autocast::set_autocast_dtype(device, static_cast<c10::ScalarType>(dtype.toInt()));
    if (cache.isBool()) at::autocast::set_autocast_cache_enabled(cache.toBool());
    at::autocast::increment_nesting();
  }
  ~ExportedAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  ExportedAutocast(const ExportedAutocast&) = delete;
  ExportedAutocast& operator=(const ExportedAutocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_, cache_;
  c10::ScalarType dtype_;
};

c10::DeviceType autocast_device(const c10::IValue& name) {
  return c10::Device(name.toStringRef()).type();
}

/// One run of a graph.
class GraphRun {
 public:
  GraphRun(const Graph& graph, const Values& inputs, bool training)
      : graph_(graph), training_(training), frame_(graph.slots) {
    TORCH_CHECK_VALUE(inputs.size() == graph.inputs.size(), "expected ", graph.inputs.size(),
                      " values for a graph, got ", inputs.size(), ".");
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph.inputs[i] >= 0) frame_[static_cast<size_t>(graph.inputs[i])] = inputs[i];
    }
  }

  Values run() {
    for (const Node& node : graph_.nodes) {
      if (node.checks_metadata && any_autocast()) continue;
      try {
        run_node(node);
      } catch (c10::Error& error) {
        error.add_context("in " + node.where + " of the exported program");
        throw;
      }
    }
    Values outputs;
    outputs.reserve(graph_.outputs.size());
    for (const Argument& output : graph_.outputs) outputs.push_back(value_of(output));
    return outputs;
  }

 private:
  c10::IValue value_of(const Argument& argument) const {
    if (argument.slot >= 0) {
      const c10::IValue& value = frame_[static_cast<size_t>(argument.slot)];
      return argument.type && !value.isTensor() ? converted(value, argument.type) : converted_tensor(value, argument);
    }
    if (!argument.is_list) return argument.constant;
    c10::impl::GenericList list(c10::AnyType::get());
    list.reserve(argument.elements.size());
    for (const Argument& element : argument.elements) list.push_back(value_of(element));
    return argument.type ? converted(list, argument.type) : c10::IValue(list);
  }
  /// Nearly all values are tensors for parameters that are tensors.
  static c10::IValue converted_tensor(const c10::IValue& value, const Argument& argument) {
    if (!argument.type || argument.type->kind() == c10::TypeKind::TensorType) return value;
    return converted(value, argument.type);
  }

  void run_node(const Node& node) {
    Values stack;
    stack.reserve(node.arguments.size());
    for (const Argument& argument : node.arguments) stack.push_back(value_of(argument));
    if (!training_) {
      for (const auto& [index, value] : node.evaluation) stack[index] = value;
    }
    if (node.only_in_training && !training_) {
      stack.resize(1);
    } else if (node.op) {
      node.op->callBoxed(stack);
    } else if (node.function) {
      stack = {node.function->function(stack)};
    } else {
      stack = run_graph_operator(node, std::move(stack));
    }
    store(node, stack);
    for (const int slot : node.last_uses) frame_[static_cast<size_t>(slot)] = c10::IValue();
  }

  void store(const Node& node, const Values& results) {
    TORCH_CHECK_VALUE(node.results.size() <= results.size(), "expected ", node.results.size(), " results, got ",
                      results.size(), ".");
    for (size_t i = 0; i < node.results.size(); ++i) {
      const Result& result = node.results[i];
      if (!result.is_list) {
        if (result.slots[0] >= 0) frame_[static_cast<size_t>(result.slots[0])] = results[i];
        continue;
      }
      const Values all = values_of_list(results[i]);
      TORCH_CHECK_VALUE(all.size() >= result.slots.size(), "expected ", result.slots.size(), " tensors, got ",
                        all.size(), ".");
      for (size_t k = 0; k < result.slots.size(); ++k) frame_[static_cast<size_t>(result.slots[k])] = all[k];
    }
  }

  Values inner(const Node& node, size_t argument, const Values& inputs) const {
    return GraphRun(*node.arguments[argument].graph, inputs, training_).run();
  }

  Values run_graph_operator(const Node& node, Values stack) const {
    const auto rest = [&](size_t from) {
      return Values(stack.begin() + static_cast<std::ptrdiff_t>(from), stack.end());
    };
    switch (node.graph_operator) {
      case GraphOperator::cond:
        return inner(node, is_true(stack[0]) ? 1 : 2, values_of_list(stack[3]));
      case GraphOperator::while_loop:
        return run_while(node, values_of_list(stack[2]), values_of_list(stack[3]));
      case GraphOperator::scan:
        return run_scan(node, values_of_list(stack[1]), values_of_list(stack[2]), values_of_list(stack[3]));
      case GraphOperator::grad_mode: {
        const at::AutoGradMode mode(stack[0].toBool());
        return inner(node, 1, rest(2));
      }
      default: {
        const ExportedAutocast mode(autocast_device(stack[0]), stack[1], stack[2].toBool(), stack[3]);
        return inner(node, 4, rest(5));
      }
    }
  }

  Values run_while(const Node& node, Values carried, const Values& others) const {
    while (is_true(inner(node, 0, joined(carried, others)).at(0))) carried = inner(node, 1, joined(carried, others));
    return carried;
  }

  /// The graph maps the carried values and a slice of each sequence to the next carried values and a slice of each
  /// result.
  Values run_scan(const Node& node, Values carried, const Values& sequences, const Values& others) const {
    TORCH_CHECK_VALUE(!sequences.empty(), "scan needs at least one sequence.");
    const int64_t steps = sequences[0].toTensor().size(0);
    const size_t carries = carried.size();
    std::vector<std::vector<at::Tensor>> slices;
    for (int64_t step = 0; step < steps; ++step) {
      Values inputs = carried;
      inputs.reserve(carries + sequences.size() + others.size());
      for (const c10::IValue& sequence : sequences) inputs.emplace_back(sequence.toTensor().select(0, step));
      const Values results = inner(node, 0, joined(std::move(inputs), others));
      slices.resize(results.size() - carries);
      for (size_t i = 0; i < slices.size(); ++i) slices[i].push_back(results[carries + i].toTensor());
      carried.assign(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(carries));
    }
    for (const std::vector<at::Tensor>& one : slices) carried.emplace_back(at::stack(one));
    return carried;
  }

  const Graph& graph_;
  bool training_;
  Values frame_;
};

}  // namespace

std::vector<c10::IValue> run_graph(const Graph& graph, const std::vector<c10::IValue>& inputs, bool training) {
  return GraphRun(graph, inputs, training).run();
}

}  // namespace bellows::models::exported
