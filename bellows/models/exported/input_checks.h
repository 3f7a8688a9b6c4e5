#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "bellows/models/exported/schema.h"
#include "bellows/models/exported/size_expression.h"

namespace bellows::models::exported {

/// A size of an input: a fixed number, or an expression over symbols.
struct ExportedSize {
  int64_t fixed = -1;  ///< -1: dynamic
  std::optional<SizeExpression> form{};
};

/// An input of an exported program.
struct ExportedInput {
  std::string name;
  std::string path;             ///< in guards
  size_t graph_input = 0;       ///< its position among the inputs of the graph
  bool is_tensor = false;       ///< false: a Python number, which callers pass as a tensor with one element
  bool is_constant = false;     ///< the exporter wrote the value into the program
  c10::IValue constant{};       ///< the value; None for values that are no numbers
  std::string constant_text{};  ///< the value for messages
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<ExportedSize> sizes{};  ///< of a tensor; for a number that is a size, its single form
};

/// Checks the inputs of a call against the sizes, ranges and conditions with which the program was exported.
class InputChecks {
 public:
  /// Params: module – the JSON of the module; leaves – names of inputs that are tensors or numbers
  InputChecks() = default;
  InputChecks(std::vector<ExportedInput> inputs, SizeNames names, const Json& ranges, const Json& guards);

  const std::vector<ExportedInput>& inputs() const { return inputs_; }
  /// Conditions of the exporter that are of an unknown kind and are not checked.
  const std::vector<std::string>& unchecked() const { return unchecked_; }
  /// Returns the values for the program, in the order of inputs().
  /// Throws: c10::ValueError if an input is missing, or has another dtype, number of dimensions or size (the message
  ///         names the input and the size)
  std::vector<c10::IValue> values(const std::vector<at::Tensor>& given) const;

 private:
  /// One size of one input.
  struct Form {
    size_t input, dimension;
    size_t solves_for = SIZE_MAX;  ///< symbol whose value follows from the size; SIZE_MAX: none
  };
  struct Range {
    SizeExpression size;
    std::optional<int64_t> least, most;
  };

  void order_forms();
  void add_range(const std::string& size, const Json& range);
  void add_guard(const std::string& text);
  bool all_known(const SizeExpression& expression) const;
  const SizeExpression& form_of(const Form& form) const { return *inputs_[form.input].sizes[form.dimension].form; }
  std::string place_of(const Form& form) const;
  std::string place_of_symbol(size_t symbol) const;

  c10::IValue value_of(const ExportedInput& input, const at::Tensor& tensor) const;
  void set_sizes(const ExportedInput& input, const c10::IValue& value, SizeValues& sizes) const;
  void solve(const Form& form, int64_t size, SizeValues& sizes) const;
  void check_forms(const std::vector<c10::IValue>& values, SizeValues& sizes) const;
  void check_ranges(const SizeValues& sizes) const;
  void check_guards(const SizeValues& sizes) const;

  std::vector<ExportedInput> inputs_;
  SizeNames names_;
  std::vector<bool> known_;  ///< by the number of a name: its value follows from the inputs
  std::vector<Form> forms_;  ///< in the order in which symbols can be solved for
  std::vector<Range> ranges_;
  std::vector<SizeExpression> guards_;
  std::vector<std::string> unchecked_;
};

}  // namespace bellows::models::exported
