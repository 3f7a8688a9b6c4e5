#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bellows/export/size_formula.h"
#include "bellows/export/sizes.h"

namespace bellows::aten_export {

using export_detail::SizeFormula;

/// A tensor of the graph. Values are numbered in the order in which they are defined.
enum class Value : int32_t { none = -1 };
inline size_t index_of(Value value) {
  return static_cast<size_t>(value);
}

/// An argument of a call.
struct Argument {
  enum class Kind {
    constant,  ///< `constant`, such as a number, a list of integers, or None
    tensor,    ///< values[0]
    tensors,   ///< a list of tensors; Value::none is an absent one
    size,      ///< sizes[0], an integer that follows the sizes of the inputs
    sizes,     ///< a list of such integers
  };

  Argument() = default;
  Argument(c10::IValue value) : constant(std::move(value)) {}
  Argument(int value) : constant(int64_t{value}) {}
  Argument(int64_t value) : constant(value) {}
  Argument(double value) : constant(value) {}
  Argument(bool value) : constant(value) {}
  Argument(const char* value) : constant(std::string(value)) {}
  Argument(c10::ScalarType value) : constant(static_cast<int64_t>(value)) {}
  Argument(c10::MemoryFormat value) : constant(static_cast<int64_t>(value)) {}
  Argument(std::vector<int64_t> value) : constant(std::move(value)) {}
  /// An absent tensor becomes None.
  Argument(Value value) {
    if (value == Value::none) return;
    kind = Kind::tensor;
    values = {value};
  }
  Argument(std::vector<Value> value) : kind(Kind::tensors), values(std::move(value)) {}
  /// A formula without symbols becomes a constant.
  Argument(SizeFormula size);
  Argument(std::vector<SizeFormula> list);

  Kind kind = Kind::constant;
  c10::IValue constant{};
  std::vector<Value> values{};
  std::vector<SizeFormula> sizes{};
};

/// A call of an operator of libtorch that changes none of its arguments.
struct Call {
  c10::OperatorHandle op;
  std::vector<Argument> arguments{};          ///< one for each argument of the schema
  std::vector<std::vector<Value>> results{};  ///< for each result of the schema, its tensors: several for a list
};

/// A tensor that keeps its values.
struct Weight {
  std::string name{};  ///< such as "layer1.0.conv1.weight"; empty for a constant of the function's own
  at::Tensor tensor{};
  bool parameter = false;  ///< otherwise, a buffer or constant
  Value value = Value::none;
};

/// An input or output.
struct NamedValue {
  std::string name{};
  Value value = Value::none;
};

/// A function as calls of operators of libtorch, in a valid order. All calls are functional, so that views and tensors can
/// be used alike. PyTorch's formats are written from this graph.
struct AtenGraph {
  std::vector<NamedValue> inputs{}, outputs{};
  std::vector<Weight> weights{};    ///< with names
  std::vector<Weight> constants{};  ///< without names
  std::vector<Call> calls{};
  size_t values = 0;  ///< number of values
  std::vector<export_detail::Symbol> symbols{};
  std::vector<std::pair<size_t, int64_t>> places{};  ///< for each symbol, the input and the axis that have its size

  /// Returns the number of calls for each operator, such as {"aten::relu", 3}.
  std::map<std::string, int64_t> operators() const;
  /// Removes calls and constants that no output needs.
  void remove_unused();
};

/// Returns the name of an operator with its overload, such as "aten::add.Tensor".
std::string name_of(const c10::OperatorHandle& op);
/// Visits the values that a call reads.
template <class Visit>
void for_each_read(const Call& call, const Visit& visit) {
  for (const Argument& argument : call.arguments) {
    for (const Value value : argument.values) {
      if (value != Value::none) visit(value);
    }
  }
}

/// Builds a graph. A call that equals an earlier one is not added again.
class GraphBuilder {
 public:
  AtenGraph& graph() { return graph_; }
  Value new_value() { return Value(static_cast<int32_t>(graph_.values++)); }

  /// Adds a call with one tensor as result.
  /// Params:  name      – such as "aten::add.Tensor"
  ///          arguments – the others have their defaults
  Value call(const std::string& name, std::vector<Argument> arguments);
  /// Adds a call.
  /// Params:  lists – for each result, the length of its list, or -1 for a tensor
  /// Returns: the values of all results
  std::vector<std::vector<Value>> call_all(const c10::OperatorHandle& op, std::vector<Argument> arguments,
                                           const std::vector<int64_t>& lists);
  /// Adds a constant, or returns an equal one.
  Value constant(const at::Tensor& tensor);

 private:
  AtenGraph graph_;
  std::map<std::string, std::vector<std::vector<Value>>> known_;
};

}  // namespace bellows::aten_export
