#include <ATen/ops/arange.h>

#include <cmath>

#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/shapes.h"

namespace bellows::onnx_export {

namespace {

using c10::ScalarType;

/// A tensor filled with a number, with the sizes of the result.
void filled(Call& call, double value) {
  const VariedSizes sizes = call.result_sizes();
  const std::string one = call.constant(value, call.result_dtype());
  call.result(sizes.empty() ? one : call.node("Expand", {one, call.shape(sizes)}));
}

void zeros(Call& call) {
  filled(call, 0);
}
void ones(Call& call) {
  filled(call, 1);
}
void full(Call& call) {
  filled(call, call.number(1));
}
void new_full(Call& call) {
  filled(call, call.number(2));
}
void scalar_tensor(Call& call) {
  filled(call, call.number(0));
}

void copied(Call& call) {
  call.result(call.tensor(0, call.result_dtype()));
}

/// copy_ writes its second argument to the first one.
void copy(Call& call) {
  const std::string source = call.tensor(1, call.result_dtype());
  call.result(expanded(call, source, call.sizes(1), call.result_sizes()));
}

void fill_tensor(Call& call) {
  call.result(expanded(call, call.tensor(1, call.result_dtype()), {}, call.result_sizes()));
}

void arange(Call& call) {
  const std::string& name = call.name();
  const bool has_start = name != "aten::arange", has_step = name == "aten::arange.start_step";
  const ScalarType dtype = call.result_dtype();
  const VariedSizes sizes = call.result_sizes();
  const double start = has_start ? call.number(0) : 0, step = has_step ? call.number(2) : 1;
  Translation& translation = call.translation();
  if (sizes[0].constant()) {
    const at::Tensor values = at::arange(sizes[0].first(), at::kDouble).mul(step).add(start);
    call.result(translation.stored(values.to(dtype)));
    return;
  }
  // The end follows from the number of elements, which is known as an expression of the inputs' sizes.
  const ScalarType type = dtype == c10::kHalf || dtype == c10::kBFloat16 ? c10::kFloat : dtype;
  const std::string count = translation.scalar_of(sizes[0], type);
  std::string range = call.node("Range", {call.constant(0, type), count, call.constant(1, type)});
  if (step != 1) range = call.node("Mul", {range, call.constant(step, type)});
  if (start != 0) range = call.node("Add", {range, call.constant(start, type)});
  call.result(call.cast(range, type, dtype));
}

void cat(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const auto rank = static_cast<int64_t>(call.result_sizes().size());
  std::vector<std::string> parts;
  for (size_t i = 0; i < call.list_size(0); ++i) {
    const VariedOperand one = call.operand(0, i);
    const VariedSizes sizes = one.sizes();
    if (sizes.size() == 1 && sizes[0].is(0)) continue;  // libtorch accepts empty tensors of any rank
    parts.push_back(call.cast(call.translation().read(one), one.dtype(), dtype));
  }
  if (parts.size() == 1)
    call.result(parts[0]);
  else
    call.result(call.node("Concat", parts, {{"axis", call.dim(1, rank)}}));
}

void stack(Call& call) {
  const auto rank = static_cast<int64_t>(call.result_sizes().size());
  const int64_t dim = call.dim(1, rank);
  std::vector<std::string> parts;
  for (const std::string& one : call.tensors(0, call.result_dtype()))
    parts.push_back(call.node("Unsqueeze", {one, call.integers_tensor({dim})}));
  call.result(call.node("Concat", parts, {{"axis", dim}}));
}

/// libtorch lists the padding of the last dim first, as pairs; ONNX all beginnings, then all ends.
void pad(Call& call, const std::string& mode, double value) {
  const VariedSizes given = call.varied_list(1);
  const auto rank = static_cast<size_t>(call.rank(0));
  VariedSizes pads(2 * rank, export_detail::fixed(0, call.translation().count()));
  for (size_t i = 0; i < given.size() / 2; ++i) {
    pads[rank - 1 - i] = given[2 * i];
    pads[2 * rank - 1 - i] = given[2 * i + 1];
  }
  std::vector<std::string> inputs{call.tensor(0), call.shape(pads)};
  if (mode == "constant") inputs.push_back(call.constant(value, call.dtype(0)));
  call.result(call.node("Pad", inputs, {{"mode", mode}}));
}
void constant_pad(Call& call) {
  pad(call, "constant", call.number(2));
}
void reflection_pad(Call& call) {
  pad(call, "reflect", 0);
}
void replication_pad(Call& call) {
  pad(call, "edge", 0);
}

void repeat(Call& call) {
  const VariedSizes repeats = call.varied_list(1);
  VariedSizes sizes(repeats.size() - call.sizes(0).size(), export_detail::fixed(1, call.translation().count()));
  for (const Varied& one : call.sizes(0)) sizes.push_back(one);
  const std::string x = call.translation().reshape(call.tensor(0), call.sizes(0), sizes);
  call.result(call.node("Tile", {x, call.shape(repeats)}));
}

void flip(Call& call) {
  const std::vector<int64_t> dims = call.dims(1, call.rank(0));
  const std::vector<int64_t> last(dims.size(), -1), before(dims.size(), INT64_MIN);
  call.result(call.node("Slice", {call.tensor(0), call.integers_tensor(last), call.integers_tensor(before),
                                  call.integers_tensor(dims), call.integers_tensor(last)}));
}

void roll(Call& call) {
  const std::vector<int64_t> shifts = call.integers(1), dims = call.dims(2, call.rank(0));
  if (dims.size() != shifts.size()) call.fail("roll without dims has no mapping", "Pass the dims.");
  std::string x = call.tensor(0);
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t size = call.fixed_size(0, dims[i]);
    const int64_t start = size == 0 ? 0 : ((-shifts[i]) % size + size) % size;
    if (start == 0) continue;
    const auto part = [&](int64_t from, int64_t to) {
      return call.node("Slice",
                       {x, call.integers_tensor({from}), call.integers_tensor({to}), call.integers_tensor({dims[i]})});
    };
    x = call.node("Concat", {part(start, INT64_MAX), part(0, start)}, {{"axis", dims[i]}});
  }
  call.result(x);
}

void triangle(Call& call) {
  const auto upper = static_cast<int64_t>(call.name().starts_with("aten::triu"));
  call.result(
      call.node("Trilu", {call.tensor(0), call.translation().builder().integer(call.integer(1))}, {{"upper", upper}}));
}

void resize(Call& call, const std::string& mode, bool align_corners) {
  std::vector<Attribute> attributes{{"mode", mode}};
  if (mode == "nearest") {
    attributes.push_back({"coordinate_transformation_mode", std::string("asymmetric")});
    attributes.push_back({"nearest_mode", std::string("floor")});
  } else {
    attributes.push_back(
        {"coordinate_transformation_mode", std::string(align_corners ? "align_corners" : "pytorch_half_pixel")});
  }
  if (mode == "cubic") attributes.push_back({"cubic_coeff_a", -0.75});
  call.result(call.node("Resize", {call.tensor(0), "", "", call.shape(call.result_sizes())}, attributes));
}
void resize_nearest(Call& call) {
  resize(call, "nearest", false);
}
void resize_linear(Call& call) {
  resize(call, "linear", call.flag(2));
}
void resize_cubic(Call& call) {
  resize(call, "cubic", call.flag(2));
}

constexpr OperatorMapping tensor_operators[] = {
    {"aten::_to_copy", "Cast", copied},
    {"aten::_reshape_copy", "Reshape", copied},
    {"aten::arange", "Range, or a constant", arange},
    {"aten::arange.start", "Range, or a constant", arange},
    {"aten::arange.start_step", "Range, or a constant", arange},
    {"aten::cat", "Concat", cat},
    {"aten::clone", "no node", copied},
    {"aten::constant_pad_nd", "Pad", constant_pad},
    {"aten::copy", "Cast, Expand", copy},
    {"aten::fill.Scalar", "Expand", full},
    {"aten::fill.Tensor", "Expand", fill_tensor},
    {"aten::flip", "Slice", flip},
    {"aten::full", "Expand", full},
    {"aten::full_like", "Expand", full},
    {"aten::lift_fresh_copy", "no node", copied},
    {"aten::new_full", "Expand", new_full},
    {"aten::new_ones", "Expand", ones},
    {"aten::new_zeros", "Expand", zeros},
    {"aten::ones", "Expand", ones},
    {"aten::ones_like", "Expand", ones},
    {"aten::reflection_pad1d", "Pad", reflection_pad},
    {"aten::reflection_pad2d", "Pad", reflection_pad},
    {"aten::reflection_pad3d", "Pad", reflection_pad},
    {"aten::repeat", "Tile", repeat},
    {"aten::replication_pad1d", "Pad", replication_pad},
    {"aten::replication_pad2d", "Pad", replication_pad},
    {"aten::replication_pad3d", "Pad", replication_pad},
    {"aten::roll", "Concat, Slice", roll},
    {"aten::scalar_tensor", "a constant", scalar_tensor},
    {"aten::stack", "Concat, Unsqueeze", stack},
    {"aten::tril", "Trilu", triangle},
    {"aten::triu", "Trilu", triangle},
    {"aten::upsample_bicubic2d", "Resize", resize_cubic},
    {"aten::upsample_bilinear2d", "Resize", resize_linear},
    {"aten::upsample_linear1d", "Resize", resize_linear},
    {"aten::upsample_nearest1d", "Resize", resize_nearest},
    {"aten::upsample_nearest2d", "Resize", resize_nearest},
    {"aten::upsample_nearest3d", "Resize", resize_nearest},
    {"aten::upsample_trilinear3d", "Resize", resize_linear},
    {"aten::zero", "Expand", zeros},
    {"aten::zeros", "Expand", zeros},
    {"aten::zeros_like", "Expand", zeros},
};

}  // namespace

std::span<const OperatorMapping> tensor_mappings() {
  return tensor_operators;
}

}  // namespace bellows::onnx_export
