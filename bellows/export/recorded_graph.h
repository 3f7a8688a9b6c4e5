#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/export/recordings.h"
#include "bellows/export/sizes.h"

namespace bellows::export_detail {

/// Returns the sizes of a tensor in all recordings, from its geometries.
VariedSizes sizes_of(const std::vector<graph::Geometry>& geometries);

/// The same operand in all recordings.
struct VariedOperand {
  std::vector<const graph::Operand*> operands{};

  graph::ValueId value() const { return operands[0]->value; }
  bool defined() const { return value() >= 0; }
  c10::ScalarType dtype() const { return operands[0]->geometry.dtype.toScalarType(); }
  VariedSizes sizes() const { return sizes_of(geometries()); }
  std::vector<graph::Geometry> geometries() const;
};

/// The recordings of a function as one graph, from which exporters translate operators to another format.
class RecordedGraph {
 public:
  /// Params: recordings – must outlive the object
  ///         caller     – function of the user, for messages
  RecordedGraph(const Recordings& recordings, std::string caller);

  const Recordings& recordings() const { return recordings_; }
  size_t count() const { return recordings_.calls.size(); }
  size_t instructions() const { return live_.size(); }
  const graph::Instruction& instruction(size_t index, size_t recording = 0) const {
    return recordings_.calls[recording].program.instructions[index];
  }
  /// Returns whether a result of the function needs the instruction, and it computes more than views.
  bool is_live(size_t instruction) const { return live_[instruction]; }
  /// Returns the value from which a value differs only by writes that do not happen, such as those of a batch norm in
  /// evaluation mode.
  graph::ValueId settled(graph::ValueId id) const;
  /// Returns the index in Program::inputs of a value, or nothing if an operator computes it.
  std::optional<size_t> input_of(graph::ValueId id) const;
  /// Returns the source of a value that no operator computes, or null.
  const InputSource* source(graph::ValueId id) const;
  /// Returns the operand's value if it is a tensor of the function's own with one element, which is no parameter.
  std::optional<double> scalar(const VariedOperand& operand) const;
  /// Returns the integers that a tensor of the function's own with one element has in all recordings. Returns nothing if
  /// it has other elements.
  std::optional<Varied> integers(size_t input) const;
  /// Returns whether a tensor of the function's own has the same elements in all recordings.
  bool is_same(size_t input) const;

  VariedOperand argument(size_t instruction, size_t argument, size_t position = 0) const;
  VariedOperand result(size_t instruction, size_t result, size_t position = 0) const;
  VariedOperand function_result(size_t index) const;

  /// Throws c10::ValueError. The message names the operator, the weights that it reads and the place in the user's code.
  /// Params: instruction – the operator; instructions() if there is none
  [[noreturn]] void fail(size_t instruction, const std::string& problem, const std::string& advice) const;

 private:
  void find_live();

  const Recordings& recordings_;
  const std::string caller_;
  std::unordered_map<graph::ValueId, size_t> inputs_;
  std::unordered_map<graph::ValueId, graph::ValueId> same_;  ///< value after a write that does not happen, and before
  std::vector<bool> live_;
};

}  // namespace bellows::export_detail
