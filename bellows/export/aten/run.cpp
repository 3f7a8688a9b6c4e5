#include "bellows/export/aten/run.h"

#include <ATen/core/List.h>
#include <c10/core/GradMode.h>

#include <optional>

namespace bellows::aten_export {

namespace {

class Run {
 public:
  Run(const AtenGraph& graph, const std::vector<at::Tensor>& inputs, const Visitor& visit)
      : graph_(graph), visit_(visit), tensors_(graph.values), last_use_(graph.values, 0) {
    for (size_t i = 0; i < graph.calls.size(); ++i)
      for_each_read(graph.calls[i], [&](Value value) { last_use_[index_of(value)] = i; });
    for (const NamedValue& output : graph.outputs) last_use_[index_of(output.value)] = graph.calls.size();
    for (const auto& [input, axis] : graph.places) sizes_.push_back(inputs.at(input).size(axis));
    for (size_t i = 0; i < graph.inputs.size(); ++i) define(graph.inputs[i].value, inputs.at(i));
    for (const auto* list : {&graph.weights, &graph.constants}) {
      for (const Weight& weight : *list) {
        if (weight.value != Value::none) define(weight.value, weight.tensor);
      }
    }
  }

  std::vector<at::Tensor> outputs() {
    for (size_t i = 0; i < graph_.calls.size(); ++i) run(i);
    std::vector<at::Tensor> results;
    for (const NamedValue& output : graph_.outputs) results.push_back(tensors_[index_of(output.value)]);
    return results;
  }

 private:
  void define(Value value, const at::Tensor& tensor) {
    tensors_[index_of(value)] = tensor;
    if (visit_ && tensor.defined()) visit_(value, tensor);
  }

  c10::IValue tensor_list(const Argument& argument, const c10::TypePtr& type) const {
    const bool optional = type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
    c10::List<std::optional<at::Tensor>> some;
    c10::List<at::Tensor> all;
    for (const Value value : argument.values) {
      if (optional)
        some.push_back(value == Value::none ? std::nullopt : std::optional(tensors_[index_of(value)]));
      else
        all.push_back(tensors_[index_of(value)]);
    }
    return optional ? c10::IValue(some) : c10::IValue(all);
  }

  c10::IValue value_of(const Argument& argument, const c10::Argument& formal) const {
    switch (argument.kind) {
      case Argument::Kind::constant:
        return argument.constant;
      case Argument::Kind::tensor:
        return tensors_[index_of(argument.values[0])];
      case Argument::Kind::tensors:
        return tensor_list(argument, formal.type());
      case Argument::Kind::size:
        return argument.sizes[0].value(sizes_);
      case Argument::Kind::sizes:
        break;
    }
    std::vector<int64_t> numbers;
    for (const SizeFormula& size : argument.sizes) numbers.push_back(size.value(sizes_));
    return numbers;
  }

  void run(size_t index) {
    const Call& call = graph_.calls[index];
    torch::jit::Stack stack;
    for (size_t i = 0; i < call.arguments.size(); ++i)
      stack.push_back(value_of(call.arguments[i], call.op.schema().arguments()[i]));
    call.op.callBoxed(stack);
    for (size_t i = 0; i < call.results.size(); ++i) {
      if (stack[i].isTensor()) {
        define(call.results[i][0], stack[i].toTensor());
      } else if (stack[i].isTensorList()) {
        const std::vector<at::Tensor> list = stack[i].toTensorVector();
        for (size_t k = 0; k < list.size(); ++k) define(call.results[i].at(k), list[k]);
      }
    }
    for_each_read(call, [&](Value value) {
      if (last_use_[index_of(value)] == index) tensors_[index_of(value)] = at::Tensor();
    });
  }

  const AtenGraph& graph_;
  const Visitor& visit_;
  std::vector<at::Tensor> tensors_;
  std::vector<size_t> last_use_;
  std::vector<int64_t> sizes_;
};

}  // namespace

std::vector<at::Tensor> run_graph(const AtenGraph& graph, const std::vector<at::Tensor>& inputs, const Visitor& visit) {
  const c10::NoGradGuard no_gradients;
  return Run(graph, inputs, visit).outputs();
}

std::vector<ValueFacts> trace_graph(const AtenGraph& graph, const std::vector<std::vector<at::Tensor>>& inputs) {
  std::vector<ValueFacts> facts(graph.values);
  for (const auto& one : inputs) {
    run_graph(graph, one, [&](Value value, const at::Tensor& tensor) {
      ValueFacts& fact = facts[index_of(value)];
      fact.dtype = tensor.scalar_type();
      fact.sizes.resize(tensor.dim());
      fact.strides.resize(tensor.dim());
      for (int64_t i = 0; i < tensor.dim(); ++i) {
        fact.sizes[i].values.push_back(tensor.size(i));
        fact.strides[i].values.push_back(tensor.stride(i));
      }
    });
  }
  return facts;
}

}  // namespace bellows::aten_export
