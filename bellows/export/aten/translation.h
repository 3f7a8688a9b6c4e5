#pragma once

#include <c10/core/ScalarType.h>

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/export/aten/graph.h"
#include "bellows/export/recorded_graph.h"
#include "bellows/export/translated_operator.h"
#include "bellows/export/varied_view.h"

namespace bellows::aten_export {

using export_detail::Recordings;
using export_detail::Varied;
using export_detail::VariedOperand;
using export_detail::VariedSizes;

/// Tensors that the file stores by name.
struct NamedWeights {
  NamedTensors tensors{};
  std::set<std::string> parameters{};  ///< names of those that are trainable
};

/// Translates the recordings of a function to a graph of libtorch's operators. Each value of the program is a tensor of the
/// graph with the same sizes. Views of it become calls when an operator reads them.
class Translation {
 public:
  /// Params: recordings, weights – must outlive the object
  ///         caller              – function of the user, for messages
  Translation(const Recordings& recordings, const NamedWeights& weights, const char* caller);

  /// Throws: c10::ValueError if an operator cannot be exported, or if a view or a size cannot be expressed
  AtenGraph run() &&;

  GraphBuilder& builder() { return builder_; }
  const export_detail::RecordedGraph& recorded() const { return recorded_; }

  /// Returns the tensor that an operand reads.
  Value read(const VariedOperand& operand);
  /// Returns the operand's tensor with its last two dims swapped.
  Value read_transposed(const VariedOperand& operand);
  /// Sets the tensor of a result.
  void write(const VariedOperand& result, Value value);
  /// Sets the value of a buffer after a write to a part of it.
  /// Params: region – the written part, an operand of the value before the write
  void update(graph::ValueId after, const VariedOperand& region, Value value);

  SizeFormula size(const Varied& number);
  std::vector<SizeFormula> sizes(const VariedSizes& numbers);
  Value cast(Value value, c10::ScalarType from, c10::ScalarType to);

  [[noreturn]] void fail(const std::string& problem, const std::string& advice) const {
    recorded_.fail(current_, problem, advice);
  }

 private:
  struct Stored {
    Value value = Value::none;
    std::vector<graph::Geometry> geometry{};  ///< in each recording
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };

  void add_inputs();
  void add_weights();
  void add_outputs();
  void learn_sizes();
  const Stored& stored(graph::ValueId id);
  Stored load(size_t input);
  Value load_constant(size_t input);

  Value view(const Stored& from, const std::vector<graph::Geometry>& wanted);
  /// A view with overlapping elements, or with another order of memory.
  Value strided(const Stored& from, const std::vector<graph::Geometry>& wanted);
  Value permuted(Value value, const std::vector<int64_t>& order);
  Value reshaped(Value value, const VariedSizes& sizes);
  Value sliced(Value value, const std::vector<export_detail::VariedSlice>& slices);
  Value with_region(Value base, const std::vector<export_detail::VariedSlice>& slices, size_t index, int64_t dim,
                    Value inner);

  const export_detail::RecordedGraph recorded_;
  const NamedWeights& weights_;
  GraphBuilder builder_;
  export_detail::SizeFormulas formulas_;
  std::unordered_map<graph::ValueId, Stored> values_;
  std::vector<Value> inputs_;  ///< of each argument of the function
  std::map<std::string, Value> named_;
  size_t current_ = 0;  ///< the instruction that is being translated
};

/// One operator of the recordings while it is translated.
class OperatorCall : public export_detail::TranslatedOperator {
 public:
  OperatorCall(Translation& translation, size_t instruction)
      : TranslatedOperator(translation.recorded(), instruction, "The file"), translation_(translation) {}

  Translation& translation() { return translation_; }
  /// Returns the tensor of an argument, or Value::none if it is absent. If a dtype is given, the tensor is converted.
  Value tensor(size_t argument);
  Value tensor(size_t argument, c10::ScalarType dtype);
  /// Returns the argument as it was recorded.
  Argument argument_of(size_t argument);
  Value call(const std::string& op, std::vector<Argument> arguments) {
    return translation_.builder().call(op, std::move(arguments));
  }
  Value cast(Value value, c10::ScalarType from, c10::ScalarType to) { return translation_.cast(value, from, to); }
  std::vector<SizeFormula> size_list(const VariedSizes& sizes) { return translation_.sizes(sizes); }
  /// Sets the tensor of a result. For an operator that writes its argument, this is the new value of the argument.
  void result(Value value) { result(0, value); }
  void result(size_t result, Value value);

 private:
  Translation& translation_;
};

/// Translates one operator.
void translate_operator(OperatorCall& call);

/// An operator that is not called as it was recorded, such as one of this library.
struct SpecialOperator {
  const char* name;
  void (*translate)(OperatorCall& call);
};
std::vector<SpecialOperator> special_operators();
std::vector<SpecialOperator> quantized_operators();

}  // namespace bellows::aten_export
