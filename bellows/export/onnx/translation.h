#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/export/onnx/graph.h"
#include "bellows/export/recorded_graph.h"
#include "bellows/export/recordings.h"
#include "bellows/export/sizes.h"
#include "bellows/export/varied_view.h"

namespace bellows::onnx_export {

using export_detail::Recordings;
using export_detail::Varied;
using export_detail::VariedOperand;
using export_detail::VariedSizes;

/// Translates the recordings of a function to an ONNX graph. Each value of the program is a tensor of the graph, with the
/// geometry in which its operator has returned it. Views of it become nodes when an operator reads them.
class Translation {
 public:
  /// Params: name – of the graph
  Translation(const Recordings& recordings, const std::string& name);
  ~Translation();

  /// Throws: c10::ValueError if an operator has no mapping, or if a view or a size cannot be expressed
  Graph run() &&;

  GraphBuilder& builder() { return builder_; }
  const export_detail::RecordedGraph& recorded() const { return recorded_; }
  const Recordings& recordings() const { return recorded_.recordings(); }
  size_t count() const { return recorded_.count(); }

  /// Returns the tensor that an operand reads.
  std::string read(const VariedOperand& operand);
  /// Returns the operand's tensor with its last two dims swapped.
  std::string read_transposed(const VariedOperand& operand);
  /// If the operand shows a whole row-major tensor [*, n] as a matrix [m, n], returns this tensor without a reshape.
  /// Params:  sizes – receives the sizes of the tensor
  /// Returns: an empty string otherwise
  std::string read_rows(const VariedOperand& operand, VariedSizes& sizes);
  /// Returns the operand's value if it is a tensor of the function's own with one element, which is no parameter.
  std::optional<double> scalar(const VariedOperand& operand) const { return recorded_.scalar(operand); }
  /// Returns the tensor that a value represents, if the graph has it as a constant or weight.
  const export_detail::InputSource* source(graph::ValueId value) const { return recorded_.source(value); }

  /// Sets the tensor of a result.
  void write(const VariedOperand& result, const std::string& name);
  /// Sets a result whose tensor has other sizes than the result, but the same elements in the same order.
  void write_rows(const VariedOperand& result, const std::string& name, const VariedSizes& sizes);
  /// Sets the value of a buffer after a write to a part of it.
  /// Params: region – the written part, an operand of the value before the write
  void update(graph::ValueId after, const VariedOperand& region, const std::string& name);

  /// Returns a one-element int64 tensor.
  std::string size(const Varied& number);
  /// Returns a one-dimensional int64 tensor.
  std::string shape(const VariedSizes& sizes);
  /// Returns a tensor with other sizes and the same elements.
  std::string reshape(const std::string& name, const VariedSizes& from, const VariedSizes& to);

  /// Returns a size as a tensor without dims.
  std::string scalar_of(const Varied& number, c10::ScalarType dtype);
  /// Adds a constant.
  std::string stored(const at::Tensor& tensor);
  /// Adds a constant whose elements are all equal.
  std::string filled(const std::vector<int64_t>& sizes, double value, c10::ScalarType dtype);
  /// Returns whether the operand is the transpose of the tensor that its value represents.
  bool shows_transpose(const VariedOperand& operand);

  /// Returns a tensor with one element and no dims.
  std::string number(double value, c10::ScalarType dtype);
  std::string cast(const std::string& name, c10::ScalarType from, c10::ScalarType to);

  [[noreturn]] void fail(const std::string& problem, const std::string& advice) const {
    recorded_.fail(current_, problem, advice);
  }

 private:
  struct Value {
    std::string name{};
    std::vector<graph::Geometry> geometry{};  ///< in each recording
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };

  void add_inputs();
  void add_outputs();
  void translate(size_t instruction);
  const Value& value(graph::ValueId id);
  Value load(graph::ValueId id, size_t input);
  std::string load_constant(size_t input);
  std::string view(const Value& value, const std::vector<graph::Geometry>& wanted);
  std::string sliced(std::string name, const std::vector<export_detail::VariedSlice>& slices);
  /// Removes the dims of which a single element is left.
  std::string selected(std::string name, const std::vector<export_detail::VariedSlice>& slices);
  std::string position(const Varied& index, const Varied& of, bool end);
  std::string with_region(const std::string& name, const std::vector<export_detail::VariedSlice>& slices, size_t axis,
                          const std::string& inner);

  const export_detail::RecordedGraph recorded_;
  GraphBuilder builder_;
  std::unordered_map<graph::ValueId, Value> values_;
  std::vector<std::string> input_names_;
  size_t current_ = 0;  ///< the instruction that is being translated
};

/// Returns the element type of tensors in the graph. The graph computes bf16 in fp32, because runtimes have no kernels for
/// bf16 on most processors.
ElementType element_type(c10::ScalarType dtype);

}  // namespace bellows::onnx_export
