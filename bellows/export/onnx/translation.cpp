#include "bellows/export/onnx/translation.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::onnx_export {

namespace {

using export_detail::InputSource;
using export_detail::RecordedCall;
using export_detail::SizeExpression;
using export_detail::sizes_of;
using export_detail::VariedSlice;
using export_detail::VariedView;
using export_detail::VariedViewResult;
using graph::Geometry;
using graph::Instruction;
using graph::ValueId;

TensorData data_of(const at::Tensor& tensor, ElementType type) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  const auto owner = std::make_shared<const at::Tensor>(plain);
  return {.type = type,
          .sizes = plain.sizes().vec(),
          .owner = owner,
          .bytes = {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()}};
}

/// The element type in which a constant is stored.
ElementType stored_type(c10::ScalarType dtype) {
  return dtype == c10::kBFloat16 ? ElementType::bfloat16 : element_type(dtype);
}

/// "layer1.0.conv1" for the weight "layer1.0.conv1.weight".
std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

}  // namespace

ElementType element_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
    case c10::kBFloat16:
      return ElementType::float32;
    case c10::kHalf:
      return ElementType::float16;
    case c10::kDouble:
      return ElementType::float64;
    case c10::kLong:
      return ElementType::int64;
    case c10::kInt:
      return ElementType::int32;
    case c10::kShort:
      return ElementType::int16;
    case c10::kChar:
      return ElementType::int8;
    case c10::kByte:
      return ElementType::uint8;
    case c10::kBool:
      return ElementType::boolean;
    default:
      TORCH_CHECK_VALUE(false, "export_onnx: ONNX has no element type for ", dtype, " in opset 17.");
  }
}

Translation::Translation(const Recordings& recordings, const std::string& name)
    : recorded_(recordings, "export_onnx"), builder_(name) {}

Translation::~Translation() = default;

Graph Translation::run() && {
  add_inputs();
  for (size_t i = 0; i < recorded_.instructions(); ++i) {
    if (recorded_.is_live(i)) translate(i);
  }
  current_ = recorded_.instructions();
  builder_.set_scope("");
  add_outputs();
  return std::move(builder_).finish();
}

void Translation::add_inputs() {
  for (const std::string& name : recordings().output_names) builder_.reserve(name);
  for (size_t i = 0; i < recordings().input_names.size(); ++i) {
    input_names_.push_back(builder_.reserve(recordings().input_names[i]));
    const at::Tensor& first = recordings().inputs[0][i];
    if (!first.defined()) continue;
    ValueInfo info{.name = input_names_.back(), .type = element_type(first.scalar_type()), .shape = {}};
    for (int64_t axis = 0; axis < first.dim(); ++axis) {
      Varied size;
      for (const auto& inputs : recordings().inputs) size.values.push_back(inputs[i].size(axis));
      const auto symbol = std::find_if(recordings().symbols.begin(), recordings().symbols.end(),
                                       [&](const export_detail::Symbol& one) { return one.sizes == size; });
      if (size.constant() || symbol == recordings().symbols.end())
        info.shape.push_back({.size = size.first(), .name = {}});
      else
        info.shape.push_back({.size = -1, .name = symbol->name});
    }
    builder_.add_input(std::move(info));
  }
}

void Translation::add_outputs() {
  for (size_t i = 0; i < recordings().calls[0].results.size(); ++i) {
    const VariedOperand result = recorded_.function_result(i);
    ValueInfo info{.name = recordings().output_names[i], .type = element_type(result.dtype()), .shape = {}};
    for (const Varied& size : result.sizes()) {
      const auto expression = express(size, recordings().symbols);
      AxisSize axis;
      if (size.constant())
        axis.size = size.first();
      else
        axis.name = expression ? expression->text(recordings().symbols)
                               : info.name + "_axis_" + std::to_string(info.shape.size());
      info.shape.push_back(std::move(axis));
    }
    builder_.add_output(std::move(info), read(result));
  }
}

void Translation::translate(size_t index) {
  current_ = index;
  const Instruction& instruction = recordings().calls[0].program.instructions[index];
  std::string scope;
  graph::detail::for_each_operand(instruction, [&](const graph::Operand& operand) {
    const InputSource* from = source(operand.value);
    if (scope.empty() && from) scope = module_of(from->name);
  });
  builder_.set_scope(scope);
  const OperatorMapping* mapping = mapping_of(instruction.op->name);
  if (!mapping)
    fail("operator " + instruction.op->name + " has no mapping to ONNX",
         "docs/export.md lists the operators that have one. Express the computation with these operators.");
  Call call(*this, index, *mapping);
  mapping->translate(call);
}

const Translation::Value& Translation::value(ValueId id) {
  id = recorded_.settled(id);
  const auto known = values_.find(id);
  if (known != values_.end()) return known->second;
  const std::optional<size_t> input = recorded_.input_of(id);
  if (!input)
    fail("a result of an operator is read that has no mapping, such as the positions of a pool's maxima",
         "docs/export.md lists what is mapped.");
  return values_.emplace(id, load(id, *input)).first->second;
}

Translation::Value Translation::load(ValueId id, size_t input) {
  Value value;
  for (const RecordedCall& call : recordings().calls)
    value.geometry.push_back(Geometry::of(call.sources[input].tensor));
  value.dtype = value.geometry[0].dtype.toScalarType();
  const InputSource& from = recordings().calls[0].sources[input];
  TORCH_INTERNAL_ASSERT(recordings().calls[0].program.inputs[input] == id);
  if (from.argument >= 0) {
    value.name = input_names_.at(from.argument);
    for (Geometry& one : value.geometry) one = graph::detail::row_major(one);
    return value;
  }
  for (Geometry& one : value.geometry) one = graph::detail::row_major(one);
  if (from.uninitialized) {
    value.name = builder_.node("Expand", {number(0, value.dtype), shape(sizes_of(value.geometry))});
  } else if (from.name.empty()) {
    value.name = load_constant(input);
  } else {
    value.name = builder_.initializer(from.name, data_of(from.tensor, stored_type(value.dtype)));
    if (stored_type(value.dtype) != element_type(value.dtype))
      value.name = builder_.node("Cast", {value.name}, {{"to", static_cast<int64_t>(element_type(value.dtype))}});
  }
  return value;
}

std::string Translation::load_constant(size_t input) {
  const at::Tensor& first = recordings().calls[0].sources[input].tensor;
  if (recorded_.is_same(input)) return stored(first);
  const std::optional<Varied> number = recorded_.integers(input);
  if (!number)
    fail("the function creates a tensor of sizes " + c10::str(first.sizes()) +
             " on the host, and its values depend on the sizes of the inputs",
         "Create it with operators such as arange(), or do not let the axis vary.");
  return scalar_of(*number, first.scalar_type());
}

std::string Translation::stored(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.scalar_type() == c10::kBFloat16 ? tensor.to(c10::kFloat) : tensor;
  const TensorData data = data_of(plain, element_type(plain.scalar_type()));
  return builder_.constant(data.type, data.sizes,
                           std::string(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size()));
}

std::string Translation::filled(const std::vector<int64_t>& sizes, double value, c10::ScalarType dtype) {
  return stored(at::full(sizes, value, at::TensorOptions(dtype)));
}

std::string Translation::scalar_of(const Varied& number, c10::ScalarType dtype) {
  const std::string size = this->size(number);
  return cast(reshape(size, {export_detail::fixed(1, count())}, {}), c10::kLong, dtype);
}

bool Translation::shows_transpose(const VariedOperand& operand) {
  const Value& from = value(operand.value());
  for (size_t i = 0; i < count(); ++i) {
    const Geometry turned = graph::detail::transposed(operand.operands[i]->geometry);
    if (turned.sizes != from.geometry[i].sizes || turned.strides != from.geometry[i].strides ||
        turned.offset != from.geometry[i].offset)
      return false;
  }
  return true;
}

std::string Translation::read(const VariedOperand& operand) {
  const Value from = value(operand.value());
  if (from.dtype != operand.dtype())
    fail("a tensor of dtype " + c10::str(from.dtype) + " is viewed as " + c10::str(operand.dtype()),
         "ONNX cannot express views with another dtype; use to() instead.");
  return view(from, operand.geometries());
}

std::string Translation::read_transposed(const VariedOperand& operand) {
  std::vector<Geometry> wanted = operand.geometries();
  for (Geometry& one : wanted) one = graph::detail::transposed(one);
  return view(value(operand.value()), wanted);
}

std::string Translation::read_rows(const VariedOperand& operand, VariedSizes& sizes) {
  const Value& from = value(operand.value());
  const std::vector<Geometry> wanted = operand.geometries();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Geometry &base = from.geometry[i], &rows = wanted[i];
    if (base.sizes.size() < 3 || rows.sizes.size() != 2 || !base.is_contiguous() || !rows.is_contiguous() ||
        base.offset != rows.offset || base.sizes.back() != rows.sizes[1] ||
        rows.sizes[0] * rows.sizes[1] != c10::multiply_integers(base.sizes))
      return {};
  }
  sizes = sizes_of(from.geometry);
  return from.name;
}

std::string Translation::view(const Value& from, const std::vector<Geometry>& wanted) {
  const VariedViewResult planned = export_detail::plan_views(from.geometry, wanted);
  if (!planned.view) fail(planned.problem, planned.advice);
  const VariedView& plan = *planned.view;
  std::string name = from.name;
  VariedSizes sizes = sizes_of(from.geometry);
  if (!plan.memory_order.empty()) {
    name = builder_.node("Transpose", {name}, {{"perm", plan.memory_order}});
    VariedSizes permuted;
    for (const int64_t dim : plan.memory_order) permuted.push_back(sizes[dim]);
    sizes = permuted;
  }
  if (plan.sizes) name = reshape(name, sizes, *plan.sizes);
  name = sliced(name, plan.slices);
  if (!plan.order.empty()) name = builder_.node("Transpose", {name}, {{"perm", plan.order}});
  if (!plan.inserted.empty()) name = builder_.node("Unsqueeze", {name, builder_.integers(plan.inserted)});
  if (!plan.expanded.empty()) name = builder_.node("Expand", {name, shape(plan.expanded)});
  return name;
}

/// A position in a dim: a number, counted from the end if it then does not vary.
std::string Translation::position(const Varied& index, const Varied& of, bool end) {
  if (end && index == of) return builder_.integers({std::numeric_limits<int64_t>::max()});
  const Varied from_end = export_detail::minus(index, of);
  if (!index.constant() && from_end.constant() && from_end.first() < 0) return builder_.integers({from_end.first()});
  return size(index);
}

std::string Translation::sliced(std::string name, const std::vector<VariedSlice>& slices) {
  const std::string end_of_dim = builder_.integers({std::numeric_limits<int64_t>::max()});
  std::vector<std::string> starts, ends;
  std::vector<int64_t> axes, steps;
  for (const VariedSlice& slice : slices) {
    if (slice.select || slice.whole()) continue;
    if (!slice.step.constant()) fail("the step of a slice varies with the sizes of the inputs", "Use a fixed step.");
    starts.push_back(position(slice.start, slice.of, false));
    // With a step, the end of the last element differs from the end of the dim.
    ends.push_back(slice.to_end() ? end_of_dim : position(slice.end, slice.of, true));
    axes.push_back(static_cast<int64_t>(slice.dim));
    steps.push_back(slice.step.first());
  }
  const auto joined = [&](const std::vector<std::string>& parts) {
    return parts.size() == 1 ? parts[0] : builder_.node("Concat", parts, {{"axis", int64_t{0}}});
  };
  if (!axes.empty()) {
    std::vector<std::string> inputs{name, joined(starts), joined(ends), builder_.integers(axes)};
    if (std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step != 1; }))
      inputs.push_back(builder_.integers(steps));
    name = builder_.node("Slice", inputs);
  }
  return selected(name, slices);
}

std::string Translation::selected(std::string name, const std::vector<VariedSlice>& slices) {
  for (size_t i = slices.size(); i-- > 0;) {
    if (!slices[i].select) continue;
    const Varied& start = slices[i].start;
    const Varied from_end = export_detail::minus(start, slices[i].of);
    std::string index;
    if (start.constant())
      index = builder_.integer(start.first());
    else if (from_end.constant())
      index = builder_.integer(from_end.first());
    else
      index = scalar_of(start, c10::kLong);
    name = builder_.node("Gather", {name, index}, {{"axis", static_cast<int64_t>(i)}});
  }
  return name;
}

void Translation::write(const VariedOperand& result, const std::string& name) {
  values_[result.value()] = {.name = name, .geometry = result.geometries(), .dtype = result.dtype()};
}

void Translation::write_rows(const VariedOperand& result, const std::string& name, const VariedSizes& sizes) {
  Value value{.name = name, .geometry = result.geometries(), .dtype = result.dtype()};
  for (size_t i = 0; i < value.geometry.size(); ++i) {
    Geometry& one = value.geometry[i];
    one.sizes.clear();
    for (const Varied& size : sizes) one.sizes.push_back(size.values[i]);
    one.strides.resize(one.sizes.size());
    one = graph::detail::row_major(one);
  }
  values_[result.value()] = std::move(value);
}

void Translation::update(ValueId after, const VariedOperand& region, const std::string& name) {
  const Value before = value(region.value());
  const std::vector<Geometry> written = region.geometries();
  const VariedViewResult planned = export_detail::plan_views(before.geometry, written);
  if (planned.view && planned.view->slices.empty() && planned.view->expanded.empty()) {
    values_[after] = {.name = name, .geometry = written, .dtype = region.dtype()};
    return;
  }
  const bool simple = planned.view && planned.view->memory_order.empty() && !planned.view->sizes &&
                      planned.view->order.empty() && planned.view->inserted.empty() && planned.view->expanded.empty() &&
                      planned.view->slices.size() == before.geometry[0].sizes.size() &&
                      std::all_of(planned.view->slices.begin(), planned.view->slices.end(),
                                  [](const VariedSlice& one) { return one.step.is(1); });
  if (!simple)
    fail("a write to the part " + written[0].text() + " of a tensor " + before.geometry[0].text() +
             " cannot be expressed in ONNX",
         "Write slices of a contiguous tensor, or use cat(), stack() or where().");
  const std::vector<VariedSlice>& slices = planned.view->slices;
  std::vector<int64_t> selected;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].select) selected.push_back(static_cast<int64_t>(i));
  }
  const std::string inner = selected.empty() ? name : builder_.node("Unsqueeze", {name, builder_.integers(selected)});
  values_[after] = {
      .name = with_region(before.name, slices, 0, inner), .geometry = before.geometry, .dtype = before.dtype};
}

/// Replaces the part of a tensor that the slices describe, one dim after the other.
std::string Translation::with_region(const std::string& name, const std::vector<VariedSlice>& slices, size_t axis,
                                     const std::string& inner) {
  if (axis == slices.size()) return inner;
  const Varied &start = slices[axis].start, &end = slices[axis].end, &of = slices[axis].of;
  const auto at = static_cast<int64_t>(axis);
  const auto part = [&](const std::string& from, const std::string& to) {
    return builder_.node("Slice", {name, from, to, builder_.integers({at})});
  };
  const std::string end_of_dim = builder_.integers({std::numeric_limits<int64_t>::max()});
  const bool whole = start.is(0) && end == of;
  const std::string middle = whole ? name : part(position(start, of, false), position(end, of, true));
  const std::string written = with_region(middle, slices, axis + 1, inner);
  if (whole) return written;
  std::vector<std::string> parts;
  if (!start.is(0)) parts.push_back(part(builder_.integers({0}), position(start, of, false)));
  parts.push_back(written);
  if (!(end == of)) parts.push_back(part(position(end, of, true), end_of_dim));
  return builder_.node("Concat", parts, {{"axis", at}});
}

std::string Translation::size(const Varied& number) {
  if (number.constant()) return builder_.integers({number.first()});
  const auto expression = express(number, recordings().symbols);
  if (!expression)
    fail("a size depends on the sizes of the inputs in a way that is not a sum, product or quotient (" +
             std::to_string(number.first()) + " for the first size)",
         "Do not let this axis vary.");
  const auto symbol = [&](size_t index) {
    const auto& [input, axis] = recordings().places[index];
    return builder_.node("Shape", {input_names_[input]},
                         {{"start", static_cast<int64_t>(axis)}, {"end", static_cast<int64_t>(axis) + 1}});
  };
  using Form = SizeExpression::Form;
  std::string result;
  if (expression->form == Form::product) {
    for (const auto& term : expression->terms)
      result = result.empty() ? symbol(term.symbol) : builder_.node("Mul", {result, symbol(term.symbol)});
    if (expression->constant != 1) result = builder_.node("Mul", {result, builder_.integers({expression->constant})});
    return result;
  }
  for (const auto& term : expression->terms) {
    std::string part = symbol(term.symbol);
    if (term.factor != 1) part = builder_.node("Mul", {part, builder_.integers({term.factor})});
    result = result.empty() ? part : builder_.node("Add", {result, part});
  }
  if (expression->constant != 0) result = builder_.node("Add", {result, builder_.integers({expression->constant})});
  if (expression->form == Form::quotient)
    result = builder_.node("Div", {result, builder_.integers({expression->divisor})});
  return result;
}

std::string Translation::shape(const VariedSizes& sizes) {
  std::vector<std::string> parts;
  std::vector<int64_t> numbers;
  const auto add_numbers = [&] {
    if (!numbers.empty()) parts.push_back(builder_.integers(numbers));
    numbers.clear();
  };
  for (const Varied& one : sizes) {
    if (one.constant()) {
      numbers.push_back(one.first());
      continue;
    }
    add_numbers();
    parts.push_back(size(one));
  }
  add_numbers();
  if (parts.empty()) return builder_.integers({});
  return parts.size() == 1 ? parts[0] : builder_.node("Concat", parts, {{"axis", int64_t{0}}});
}

std::string Translation::reshape(const std::string& name, const VariedSizes& from, const VariedSizes& to) {
  if (from == to) return name;
  const auto without_ones = [](const VariedSizes& sizes, std::vector<int64_t>& ones) {
    VariedSizes rest;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i].is(1))
        ones.push_back(static_cast<int64_t>(i));
      else
        rest.push_back(sizes[i]);
    }
    return rest;
  };
  std::vector<int64_t> ones_from, ones_to;
  if (without_ones(from, ones_from) == without_ones(to, ones_to)) {
    if (ones_from.empty()) return builder_.node("Unsqueeze", {name, builder_.integers(ones_to)});
    if (ones_to.empty()) return builder_.node("Squeeze", {name, builder_.integers(ones_from)});
  }
  // In the shape of Reshape, 0 copies the size of the same dim, and one size may be -1.
  VariedSizes target;
  std::vector<size_t> open;
  for (size_t i = 0; i < to.size(); ++i) {
    const bool copied = !to[i].constant() && i < from.size() && to[i] == from[i];
    target.push_back(copied ? export_detail::fixed(0, count()) : to[i]);
    if (!to[i].constant() && !copied) open.push_back(i);
  }
  if (!open.empty()) {
    size_t inferred = open[0];
    for (const size_t i : open) {
      const auto expression = express(to[i], recordings().symbols);
      if (!expression || !expression->symbol()) inferred = i;
    }
    target[inferred] = export_detail::fixed(-1, count());
  }
  return builder_.node("Reshape", {name, shape(target)});
}

std::string Translation::number(double value, c10::ScalarType dtype) {
  const at::Tensor tensor = at::scalar_tensor(value, at::TensorOptions(dtype == c10::kBFloat16 ? c10::kFloat : dtype));
  const TensorData data = data_of(tensor, element_type(dtype));
  return builder_.constant(data.type, {},
                           std::string(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size()));
}

std::string Translation::cast(const std::string& name, c10::ScalarType from, c10::ScalarType to) {
  if (element_type(from) == element_type(to)) return name;
  return builder_.node("Cast", {name}, {{"to", static_cast<int64_t>(element_type(to))}});
}

}  // namespace bellows::onnx_export
