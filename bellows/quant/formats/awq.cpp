#include "bellows/quant/formats/awq.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/tensor.h>

#include "bellows/quant/formats/layer_tensors.h"

namespace bellows::quant {

namespace {

constexpr const char* awq_format = "AWQ";

/// The outputs whose integers are in a word, beginning with the lowest bits.
at::Tensor word_order() {
  return at::tensor({0, 2, 4, 6, 1, 3, 5, 7}, at::kLong);
}

/// Params: rows – [*, 8 · n]
at::Tensor reordered(const at::Tensor& rows, const at::Tensor& order) {
  return rows.reshape({rows.size(0), -1, 8}).index_select(2, order).reshape(rows.sizes());
}

at::Tensor pack_awq(const at::Tensor& rows) {
  return pack_words(reordered(rows.to(at::kByte), word_order()), 4);
}

at::Tensor unpack_awq(const at::Tensor& words) {
  return reordered(unpack_words(words, 4, words.size(1) * 8), at::argsort(word_order()));
}

}  // namespace

NamedTensors to_awq(const QuantizedLinear& layer) {
  check_bits(awq_format, layer.weight.scheme.bits, {4});
  TORCH_CHECK_VALUE(!layer.input_order.defined(),
                    "AWQ: the format has no group index, so it cannot store a layer with ",
                    "an input order. Quantize without activation order, or use GPTQ's format.");
  const UnsignedMatrix matrix = to_unsigned(layer, awq_format);
  TORCH_CHECK_VALUE(matrix.values.size(0) % 8 == 0, "AWQ: expected a number of outputs that is a multiple of 8, got a ",
                    "weight of shape ", matrix.values.sizes(), ".");
  return {{"qweight", pack_awq(matrix.values.t())},
          {"qzeros", pack_awq(matrix.zero_point.t())},
          {"scales", stored_scales(matrix.scale.t().contiguous(), at::kHalf, awq_format)}};
}

QuantizedLinear from_awq(const NamedTensors& tensors, const Scheme& scheme) {
  check_bits(awq_format, scheme.bits, {4});
  const LayerTensors file(tensors, awq_format);
  const at::Tensor words = file.get("qweight", at::kInt, {-1, -1});
  const int64_t in = words.size(0), out = words.size(1) * 8, groups = groups_of(in, scheme, awq_format);
  const UnsignedMatrix matrix{
      .values = unpack_awq(words).t().contiguous(),
      .scale = file.scales("scales", {groups, out}).t(),
      .zero_point = unpack_awq(file.get("qzeros", at::kInt, {groups, out / 8})).to(at::kInt).t()};
  return from_unsigned(matrix, scheme_of_zero_points(matrix.zero_point, scheme), awq_format);
}

}  // namespace bellows::quant
