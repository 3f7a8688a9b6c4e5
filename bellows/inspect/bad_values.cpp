#include "bellows/inspect/bad_values.h"

#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <cstdint>

#include "bellows/inspect/op_info.h"
#include "bellows/tap/deferral.h"

namespace bellows::inspect {

namespace {

/// Bits of an IEEE type: NaN and infinity have all exponent bits set; infinity has no mantissa bits.
template <class Bits, Bits exponent, Bits mantissa>
struct FloatBits {
  /// A loop over plain integers, so that compilers vectorize it.
  static bool all_finite(const Bits* values, int64_t count) {
    Bits bad = 0;
    for (int64_t i = 0; i < count; ++i) bad |= static_cast<Bits>((values[i] & exponent) == exponent);
    return bad == 0;
  }
  static BadValues classify(const Bits* values, int64_t count) {
    BadValues bad;
    for (int64_t i = 0; i < count; ++i) {
      if ((values[i] & exponent) == exponent) ((values[i] & mantissa) ? bad.nan : bad.inf) = true;
    }
    return bad;
  }
  static BadValues look(const void* data, int64_t count) {
    const auto* values = static_cast<const Bits*>(data);
    return all_finite(values, count) ? BadValues{} : classify(values, count);
  }
};
using Float64Bits = FloatBits<uint64_t, 0x7ff0000000000000, 0x000fffffffffffff>;
using Float32Bits = FloatBits<uint32_t, 0x7f800000, 0x007fffff>;
using Float16Bits = FloatBits<uint16_t, 0x7c00, 0x03ff>;
using BFloat16Bits = FloatBits<uint16_t, 0x7f80, 0x007f>;

BadValues look_at_memory(c10::ScalarType type, const void* data, int64_t count) {
  switch (type) {
    case c10::kDouble:
      return Float64Bits::look(data, count);
    case c10::kComplexDouble:
      return Float64Bits::look(data, 2 * count);
    case c10::kFloat:
      return Float32Bits::look(data, count);
    case c10::kComplexFloat:
      return Float32Bits::look(data, 2 * count);
    case c10::kHalf:
      return Float16Bits::look(data, count);
    case c10::kBFloat16:
      return BFloat16Bits::look(data, count);
    default:
      return {};
  }
}

/// Visits the dims from `dim` on. The innermost dim is read at once if its elements are contiguous.
BadValues look_at_strided(const at::Tensor& tensor, const char* data, int64_t dim) {
  const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
  const int64_t step = stride * static_cast<int64_t>(tensor.itemsize());
  const bool innermost = dim + 1 == tensor.dim();
  if (innermost && stride == 1) return look_at_memory(tensor.scalar_type(), data, size);
  BadValues bad;
  for (int64_t i = 0; i < (stride == 0 ? 1 : size); ++i, data += step) {
    bad |= innermost ? look_at_memory(tensor.scalar_type(), data, 1) : look_at_strided(tensor, data, dim + 1);
  }
  return bad;
}

}  // namespace

BadValues bad_values(const at::Tensor& tensor) {
  tap::sync();
  const bool watched = tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()) &&
                       tensor.layout() == c10::kStrided && !tensor.is_meta() && tensor.numel() > 0 &&
                       tensor.has_storage() && tensor.storage().data() != nullptr;
  if (!watched) return {};
  if (tensor.is_cpu()) {
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    if (tensor.is_non_overlapping_and_dense()) return look_at_memory(tensor.scalar_type(), data, tensor.numel());
    return look_at_strided(tensor, data, 0);
  }
  c10::InferenceMode no_autograd;
  return {at::isnan(tensor).any().item<bool>(), at::isinf(tensor).any().item<bool>()};
}

BadValues bad_values(const c10::IValue& value) {
  const auto of_number = [](double number) { return BadValues{std::isnan(number), std::isinf(number)}; };
  if (value.isDouble()) return of_number(value.toDouble());
  BadValues bad;
  for_each_tensor(value, [&](const at::Tensor& tensor) { bad |= bad_values(tensor); });
  return bad;
}

}  // namespace bellows::inspect
