#include "bellows/quant/formats/gptq.h"

#include <ATen/TensorOperators.h>

#include "bellows/quant/formats/layer_tensors.h"

namespace bellows::quant {

namespace {

constexpr const char* gptq_format = "GPTQ";

void check_version(int version) {
  TORCH_CHECK_VALUE(version == 1 || version == 2, "GPTQ: expected version 1 or 2, got ", version, ".");
}

}  // namespace

NamedTensors to_gptq(const QuantizedLinear& layer, int version) {
  check_version(version);
  const int bits = layer.weight.scheme.bits;
  check_bits(gptq_format, bits, {2, 3, 4, 8});
  const UnsignedMatrix matrix = to_unsigned(layer, gptq_format);
  TORCH_CHECK_VALUE(matrix.values.size(0) * bits % 32 == 0 && matrix.values.size(1) * bits % 32 == 0,
                    "GPTQ: expected numbers of inputs and outputs that fill words of 32 bits with integers of ", bits,
                    " bits, got a weight of shape ", matrix.values.sizes(), ".");
  const at::Tensor zeros = (matrix.zero_point - (version == 1 ? 1 : 0)).bitwise_and((1 << bits) - 1);
  return {{"qweight", pack_words(matrix.values, bits).t().contiguous()},
          {"qzeros", pack_words(zeros.t().to(at::kByte).contiguous(), bits)},
          {"scales", stored_scales(matrix.scale.t().contiguous(), at::kHalf, gptq_format)},
          {"g_idx", matrix.group_index}};
}

QuantizedLinear from_gptq(const NamedTensors& tensors, const Scheme& scheme, int version) {
  check_version(version);
  const int bits = scheme.bits;
  check_bits(gptq_format, bits, {2, 3, 4, 8});
  const LayerTensors file(tensors, gptq_format);
  const at::Tensor words = file.get("qweight", at::kInt, {-1, -1});
  TORCH_CHECK_VALUE(words.size(0) * 32 % bits == 0,
                    "GPTQ: expected rows of \"qweight\" that contain whole integers of ", bits,
                    " bits, found the shape ", words.sizes(), ".");
  const int64_t out = words.size(1), in = words.size(0) * 32 / bits, groups = groups_of(in, scheme, gptq_format);
  const at::Tensor stored_zeros = file.get("qzeros", at::kInt, {groups, (out * bits + 31) / 32});
  const at::Tensor zeros = unpack_words(stored_zeros, bits, out).to(at::kInt).t() + (version == 1 ? 1 : 0);
  UnsignedMatrix matrix{.values = unpack_words(words.t(), bits, in),
                        .scale = file.scales("scales", {groups, out}).t(),
                        .zero_point = zeros.bitwise_and((1 << bits) - 1)};
  if (file.find("g_idx").defined()) matrix.group_index = file.get("g_idx", at::kInt, {in});
  return from_unsigned(matrix, scheme_of_zero_points(matrix.zero_point, scheme), gptq_format);
}

}  // namespace bellows::quant
