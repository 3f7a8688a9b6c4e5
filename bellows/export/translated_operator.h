#pragma once

#include <string>
#include <vector>

#include "bellows/export/recorded_graph.h"

namespace bellows::export_detail {

/// The arguments and results of one operator, in all recordings. Arguments are numbered by their position in the
/// operator's schema.
class TranslatedOperator {
 public:
  /// Params: target – the format to which the operator is translated, for messages
  TranslatedOperator(const RecordedGraph& graph, size_t instruction, const char* target)
      : graph_(graph), instruction_(instruction), target_(target) {}

  const std::string& name() const { return instruction().op->name; }
  const graph::Instruction& instruction() const { return graph_.instruction(instruction_); }
  bool has(size_t argument) const;
  size_t list_size(size_t argument) const;
  VariedOperand operand(size_t argument, size_t index = 0) const {
    return graph_.argument(instruction_, argument, index);
  }
  VariedSizes sizes(size_t argument) const { return operand(argument).sizes(); }
  int64_t rank(size_t argument) const { return static_cast<int64_t>(sizes(argument).size()); }
  c10::ScalarType dtype(size_t argument) const { return operand(argument).dtype(); }
  /// The size of a dim, which must not vary.
  int64_t fixed_size(size_t argument, int64_t dim) const;

  /// The functions below throw c10::ValueError if a number varies, except varied() and varied_list().
  int64_t integer(size_t argument) const;
  std::vector<int64_t> integers(size_t argument) const;
  Varied varied(size_t argument) const;
  VariedSizes varied_list(size_t argument) const;
  double number(size_t argument) const;
  /// The number in all recordings if it is an integer in each of them.
  std::optional<Varied> varied_number(size_t argument) const;
  bool flag(size_t argument) const;
  std::string text(size_t argument) const;
  /// A dim from 0 to rank - 1.
  int64_t dim(size_t argument, int64_t rank) const;
  std::vector<int64_t> dims(size_t argument, int64_t rank) const;

  VariedOperand result_operand(size_t result = 0, size_t index = 0) const {
    return graph_.result(instruction_, result, index);
  }
  VariedSizes result_sizes(size_t result = 0) const { return result_operand(result).sizes(); }
  c10::ScalarType result_dtype(size_t result = 0) const { return result_operand(result).dtype(); }

  [[noreturn]] void fail(const std::string& problem, const std::string& advice) const {
    graph_.fail(instruction_, problem, advice);
  }

 protected:
  const graph::Instruction::Argument& argument(size_t index, size_t recording = 0) const {
    return graph_.instruction(instruction_, recording).arguments.at(index);
  }
  const RecordedGraph& recorded() const { return graph_; }

 private:
  const RecordedGraph& graph_;
  const size_t instruction_;
  const char* const target_;
};

}  // namespace bellows::export_detail
