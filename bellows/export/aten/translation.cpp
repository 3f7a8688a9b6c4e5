#include "bellows/export/aten/translation.h"

#include <algorithm>
#include <utility>

#include "bellows/graph/program/program_edit.h"

namespace bellows::aten_export {

using export_detail::InputSource;
using export_detail::RecordedCall;
using export_detail::sizes_of;
using graph::Geometry;
using graph::ValueId;

Translation::Translation(const Recordings& recordings, const NamedWeights& weights, const char* caller)
    : recorded_(recordings, caller), weights_(weights), formulas_(recordings.symbols) {}

AtenGraph Translation::run() && {
  learn_sizes();
  add_inputs();
  add_weights();
  for (current_ = 0; current_ < recorded_.instructions(); ++current_) {
    if (!recorded_.is_live(current_)) continue;
    OperatorCall call(*this, current_);
    translate_operator(call);
  }
  add_outputs();
  AtenGraph& graph = builder_.graph();
  graph.remove_unused();
  return std::move(graph);
}

/// Numbers can be products of sizes.
void Translation::learn_sizes() {
  for (size_t i = 0; i < recorded_.instructions(); ++i) {
    const auto& results = recorded_.instruction(i).results;
    for (size_t k = 0; k < results.size(); ++k) {
      for (size_t position = 0; position < results[k].operands.size(); ++position) {
        for (const Varied& size : recorded_.result(i, k, position).sizes()) formulas_.add_size(size);
      }
    }
  }
}

void Translation::add_inputs() {
  AtenGraph& graph = builder_.graph();
  const Recordings& recordings = recorded_.recordings();
  std::vector<size_t> positions;
  for (size_t i = 0; i < recordings.input_names.size(); ++i) {
    positions.push_back(graph.inputs.size());
    const bool given = recordings.inputs[0][i].defined();
    inputs_.push_back(given ? builder_.new_value() : Value::none);
    if (given) graph.inputs.push_back({.name = recordings.input_names[i], .value = inputs_.back()});
  }
  graph.symbols = recordings.symbols;
  for (const auto& [input, axis] : recordings.places)
    graph.places.emplace_back(positions[input], static_cast<int64_t>(axis));
}

void Translation::add_weights() {
  for (const auto& [name, tensor] : weights_.tensors) {
    if (!tensor.defined()) continue;
    const Value value = builder_.new_value();
    named_[name] = value;
    builder_.graph().weights.push_back(
        {.name = name, .tensor = tensor.detach(), .parameter = weights_.parameters.contains(name), .value = value});
  }
}

void Translation::add_outputs() {
  const Recordings& recordings = recorded_.recordings();
  for (size_t i = 0; i < recordings.calls[0].results.size(); ++i)
    builder_.graph().outputs.push_back(
        {.name = recordings.output_names[i], .value = read(recorded_.function_result(i))});
}

const Translation::Stored& Translation::stored(ValueId id) {
  id = recorded_.settled(id);
  const auto known = values_.find(id);
  if (known != values_.end()) return known->second;
  const std::optional<size_t> input = recorded_.input_of(id);
  if (!input) fail("a result of an operator is read that cannot be exported", "Compute it in another way.");
  return values_.emplace(id, load(*input)).first->second;
}

Translation::Stored Translation::load(size_t input) {
  Stored made;
  for (const RecordedCall& call : recorded_.recordings().calls)
    made.geometry.push_back(Geometry::of(call.sources[input].tensor));
  made.dtype = made.geometry[0].dtype.toScalarType();
  const InputSource& from = recorded_.recordings().calls[0].sources[input];
  if (from.argument >= 0) {
    made.value = inputs_.at(from.argument);
  } else if (from.uninitialized) {
    made.value = builder_.call("aten::full", {sizes(sizes_of(made.geometry)), 0, made.dtype});
    for (Geometry& one : made.geometry) one = graph::detail::row_major(one);
  } else if (from.name.empty()) {
    made.value = load_constant(input);
  } else {
    made.value = named_.at(from.name);
  }
  return made;
}

Value Translation::load_constant(size_t input) {
  const at::Tensor& first = recorded_.recordings().calls[0].sources[input].tensor;
  if (recorded_.is_same(input)) return builder_.constant(first);
  const std::optional<Varied> number = recorded_.integers(input);
  if (!number)
    fail("the function creates a tensor of sizes " + c10::str(first.sizes()) +
             " on the host, and its values depend on the sizes of the inputs",
         "Create it with operators such as arange(), or do not let the axis vary.");
  const Value scalar = builder_.call("aten::scalar_tensor", {size(*number), first.scalar_type()});
  return first.dim() == 0 ? scalar : builder_.call("aten::reshape", {scalar, first.sizes().vec()});
}

Value Translation::read(const VariedOperand& operand) {
  if (!operand.defined()) return Value::none;
  const Stored from = stored(operand.value());
  if (from.dtype != operand.dtype())
    fail("a tensor of dtype " + c10::str(from.dtype) + " is viewed as " + c10::str(operand.dtype()),
         "Use to() instead of view().");
  return view(from, operand.geometries());
}

Value Translation::read_transposed(const VariedOperand& operand) {
  std::vector<Geometry> wanted = operand.geometries();
  for (Geometry& one : wanted) one = graph::detail::transposed(one);
  return view(stored(operand.value()), wanted);
}

void Translation::write(const VariedOperand& result, Value value) {
  values_[result.value()] = {.value = value, .geometry = result.geometries(), .dtype = result.dtype()};
}

SizeFormula Translation::size(const Varied& number) {
  auto formula = formulas_.of(number);
  if (!formula)
    fail("a size depends on the sizes of the inputs in a way that is not a sum, product or quotient (" +
             std::to_string(number.first()) + " for the first size)",
         "Do not let this axis vary.");
  return *formula;
}

std::vector<SizeFormula> Translation::sizes(const VariedSizes& numbers) {
  std::vector<SizeFormula> result;
  result.reserve(numbers.size());
  for (const Varied& one : numbers) result.push_back(size(one));
  return result;
}

Value Translation::cast(Value value, c10::ScalarType from, c10::ScalarType to) {
  return from == to || value == Value::none ? value : builder_.call("aten::_to_copy", {value, to});
}

}  // namespace bellows::aten_export
