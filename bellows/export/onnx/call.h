#pragma once

#include <string>
#include <vector>

#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/translation.h"
#include "bellows/export/translated_operator.h"

namespace bellows::onnx_export {

/// One operator of the recordings while it is translated: its arguments, and nodes and results that replace it.
class Call : public export_detail::TranslatedOperator {
 public:
  Call(Translation& translation, size_t instruction, const OperatorMapping& mapping)
      : TranslatedOperator(translation.recorded(), instruction, "ONNX"), translation_(translation), mapping_(mapping) {}

  /// Returns the tensor of an argument. If a dtype is given, the tensor is converted.
  std::string tensor(size_t argument);
  std::string tensor(size_t argument, c10::ScalarType dtype);
  std::string transposed(size_t argument) { return translation_.read_transposed(operand(argument)); }
  std::vector<std::string> tensors(size_t argument, c10::ScalarType dtype);
  /// The number as a tensor without dims. It may follow the sizes of the inputs if it is an integer.
  std::string number_tensor(size_t argument, c10::ScalarType dtype);

  /// Sets the tensor of a result.
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

 private:
  Translation& translation_;
  const OperatorMapping& mapping_;
};

}  // namespace bellows::onnx_export
