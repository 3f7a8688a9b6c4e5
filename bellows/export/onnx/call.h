#pragma once

#include <string>
#include <vector>

#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/translation.h"

namespace bellows::onnx_export {

/// One operator of the recordings while it is translated: its arguments, and nodes and results that replace it.
class Call {
 public:
  Call(Translation& translation, size_t instruction, const OperatorMapping& mapping)
      : translation_(translation), instruction_(instruction), mapping_(mapping) {}

  // Arguments, by their position in the operator's schema.
  bool has(size_t argument) const;
  /// Returns the tensor of an argument. If a dtype is given, the tensor is converted.
  std::string tensor(size_t argument);
  std::string tensor(size_t argument, c10::ScalarType dtype);
  std::string transposed(size_t argument) { return translation_.read_transposed(operand(argument)); }
  std::vector<std::string> tensors(size_t argument, c10::ScalarType dtype);
  size_t list_size(size_t argument) const;
  VariedOperand operand(size_t argument, size_t index = 0) const;
  VariedSizes sizes(size_t argument) const { return operand(argument).sizes(); }
  int64_t rank(size_t argument) const { return static_cast<int64_t>(sizes(argument).size()); }
  c10::ScalarType dtype(size_t argument) const { return operand(argument).dtype(); }
  /// The size of a dim, which must not vary.
  int64_t fixed_size(size_t argument, int64_t dim) const;

  int64_t integer(size_t argument) const;
  std::vector<int64_t> integers(size_t argument) const;
  Varied varied(size_t argument) const;
  VariedSizes varied_list(size_t argument) const;
  double number(size_t argument) const;
  /// The number as a tensor without dims. It may follow the sizes of the inputs if it is an integer.
  std::string number_tensor(size_t argument, c10::ScalarType dtype);
  bool flag(size_t argument) const;
  std::string text(size_t argument) const;
  /// A dim from 0 to rank - 1.
  int64_t dim(size_t argument, int64_t rank) const;
  std::vector<int64_t> dims(size_t argument, int64_t rank) const;

  // Results.
  VariedOperand result_operand(size_t result = 0, size_t index = 0) const;
  VariedSizes result_sizes(size_t result = 0) const { return result_operand(result).sizes(); }
  c10::ScalarType result_dtype(size_t result = 0) const { return result_operand(result).dtype(); }
  /// Whether a later operator or the function's result reads it.
  void result(const std::string& name) { result(0, name); }
  void result(size_t result, const std::string& name);
  /// Sets a tensor of a result that is a list.
  void result_of_list(size_t index, const std::string& name);

  // Nodes.
  std::string node(const std::string& op, std::vector<std::string> inputs, std::vector<Attribute> attributes = {}) {
    return translation_.builder().node(op, std::move(inputs), std::move(attributes));
  }
  std::string constant(double value, c10::ScalarType dtype) { return translation_.number(value, dtype); }
  std::string integers_tensor(const std::vector<int64_t>& values) { return translation_.builder().integers(values); }
  std::string cast(const std::string& name, c10::ScalarType from, c10::ScalarType to) {
    return translation_.cast(name, from, to);
  }
  std::string shape(const VariedSizes& sizes) { return translation_.shape(sizes); }
  Translation& translation() { return translation_; }
  /// The operators of ONNX in the table. Mappings to a single operator use it as the operator.
  const char* onnx() const { return mapping_.onnx; }
  const std::string& name() const;
  [[noreturn]] void fail(const std::string& problem, const std::string& advice) const {
    translation_.fail(problem, advice);
  }

 private:
  const graph::Instruction::Argument& argument(size_t index, size_t recording = 0) const;

  Translation& translation_;
  const size_t instruction_;
  const OperatorMapping& mapping_;
};

}  // namespace bellows::onnx_export
