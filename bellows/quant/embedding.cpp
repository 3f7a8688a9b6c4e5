#include "bellows/quant/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/select.h>
#include <ATen/ops/slice.h>

namespace bellows::quant {

namespace {

constexpr int half_bits = 4;
constexpr int64_t half_values = 1 << half_bits;

/// The operators that can read rows. Comparing handles is faster than comparing names.
struct RowOperators {
  static c10::OperatorHandle named(const char* name, const char* overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  }
  c10::OperatorHandle embedding = named("aten::embedding", ""), slice = named("aten::slice", "Tensor"),
                      select = named("aten::select", "int");
};

bool is_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.is_floating_point();
}

/// Whether dim 0 is meant, which may be written as −2.
bool is_first(const c10::IValue& dim) {
  return dim.toInt() == 0 || dim.toInt() == -2;
}

std::optional<int64_t> number_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional<int64_t>(value.toInt());
}

at::Tensor as_float(const at::Tensor& x) {
  return at::_to_copy(x, x.options().dtype(at::kFloat));
}

/// The integers minus the smallest integer. All numbers are exact in fp32.
at::Tensor both_halves(const at::Tensor& bytes) {
  const at::Tensor all = as_float(bytes);
  const at::Tensor high = at::floor(all * (1.0 / half_values));
  return at::cat({all - high * half_values, high}, -1);
}

}  // namespace

at::Tensor RowsCall::rows_of(const at::Tensor& matrix) const {
  if (indices) return at::embedding(matrix, *indices);
  return one_row ? at::select(matrix, 0, begin.value_or(0)) : at::slice(matrix, 0, begin, end, step);
}

std::optional<RowsCall> rows_call(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  static const auto* const known = new RowOperators;  // never destroyed: threads may outlive static objects
  const c10::OperatorHandle& handle = op.handle();
  if (handle != known->embedding && handle != known->slice && handle != known->select) return {};
  const at::Tensor& weight = arguments[0].toTensor();
  if (!is_matrix(weight)) return {};
  if (handle == known->embedding) return RowsCall{.weight = &weight, .indices = &arguments[1].toTensor()};
  if (!is_first(arguments[1])) return {};
  if (handle == known->select) return RowsCall{.weight = &weight, .begin = arguments[2].toInt(), .one_row = true};
  return RowsCall{.weight = &weight,
                  .begin = number_of(arguments[2]),
                  .end = number_of(arguments[3]),
                  .step = arguments[4].toInt()};
}

bool has_row_scales(const Scheme& scheme) {
  return scheme.granularity == Granularity::group || scheme.granularity == Granularity::token ||
         (scheme.granularity == Granularity::channel && (scheme.axis == 0 || scheme.axis == -2));
}

Scheme embedding_scheme(Scheme weights) {
  if (has_row_scales(weights)) return weights;
  weights.granularity = Granularity::channel;
  weights.axis = 0;
  return weights;
}

at::Tensor EmbeddingRows::read(const RowsCall& call, at::ScalarType dtype) const {
  at::Tensor rows = call.rows_of(values);
  rows = halves ? both_halves(rows) : as_float(rows);
  at::Tensor scale = call.rows_of(scales);
  const std::vector<int64_t> shape = rows.sizes().vec();
  const bool grouped = scales.size(1) > 1;
  if (grouped) {
    std::vector<int64_t> parts = shape;
    parts.back() = scales.size(1);
    parts.push_back(columns() / scales.size(1));
    rows = rows.view(parts);
    scale = scale.unsqueeze(-1);
  }
  if (zero_points.defined()) {
    const at::Tensor zero = call.rows_of(zero_points);
    rows = rows - (grouped ? zero.unsqueeze(-1) : zero);
  } else if (halves && scheme.smallest() != 0) {
    rows = rows + scheme.smallest();
  }
  rows = rows * scale;
  if (grouped) rows = rows.view(shape);
  return dtype == at::kFloat ? rows : at::_to_copy(rows, rows.options().dtype(dtype));
}

at::Tensor EmbeddingRows::integers() const {
  if (!halves) return values;
  const at::Tensor low = at::bitwise_and(values, half_values - 1), high = at::bitwise_right_shift(values, half_bits);
  const at::Tensor shifted = at::cat({low, high}, -1).to(at::kShort) + scheme.smallest();
  return shifted.to(scheme.is_signed ? at::kChar : at::kByte);
}

int64_t EmbeddingRows::bytes() const {
  return static_cast<int64_t>(values.nbytes() + scales.nbytes() + (zero_points.defined() ? zero_points.nbytes() : 0));
}

EmbeddingRows embedding_rows(const QuantizedTensor& weight) {
  const Scheme& scheme = weight.scheme;
  TORCH_CHECK_VALUE(weight.values.dim() == 2 && has_row_scales(scheme),
                    "quantized embedding: expected a matrix with scales per row or group, got ", weight.values.sizes(),
                    " with ", scheme.to_text(), ".");
  const int64_t rows = weight.values.size(0), columns = weight.values.size(1);
  EmbeddingRows made{.values = weight.values.contiguous(),
                     .scales = weight.parameters.scale.contiguous().view({rows, -1}),
                     .halves = scheme.bits == half_bits && columns % 2 == 0 && columns > 0,
                     .scheme = scheme};
  if (scheme.has_zero_points()) made.zero_points = weight.parameters.zero_point.to(at::kFloat).view({rows, -1});
  if (!made.halves) return made;
  if (made.zero_points.defined()) made.zero_points = made.zero_points - scheme.smallest();
  const at::Tensor shifted = (made.values.to(at::kShort) - scheme.smallest()).to(at::kByte);
  made.values = shifted.narrow(1, 0, columns / 2) + shifted.narrow(1, columns / 2, columns / 2) * half_values;
  return made;
}

}  // namespace bellows::quant
