#include "bellows/quant/packed.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace bellows::quant {

namespace {

void check_bits(int bits) {
  TORCH_CHECK_VALUE(bits >= 1 && bits <= 8, "packed integers: expected 1 to 8 bits, got ", bits, ".");
}

int64_t bytes_of(int64_t n, int bits) {
  return (n * bits + 7) / 8;
}

void pack_row(const uint8_t* values, int64_t n, int bits, uint8_t* out) {
  const unsigned mask = (1U << bits) - 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * bits;
    const unsigned shifted = (values[i] & mask) << (at % 8);
    out[at / 8] |= static_cast<uint8_t>(shifted);
    if (shifted > 0xff) out[at / 8 + 1] |= static_cast<uint8_t>(shifted >> 8);
  }
}

void unpack_row(const uint8_t* packed, int64_t n, int bits, bool is_signed, uint8_t* out) {
  const unsigned mask = (1U << bits) - 1, sign = 1U << (bits - 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * bits;
    unsigned word = packed[at / 8];
    if (at % 8 + bits > 8) word |= static_cast<unsigned>(packed[at / 8 + 1]) << 8;
    const unsigned value = (word >> (at % 8)) & mask;
    out[i] = static_cast<uint8_t>(is_signed ? (value ^ sign) - sign : value);
  }
}

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> shape = sizes.vec();
  shape.back() = last;
  return shape;
}

}  // namespace

at::Tensor pack_bits(const at::Tensor& values, int bits) {
  check_bits(bits);
  const bool is_signed = values.scalar_type() == at::kChar;
  TORCH_CHECK_VALUE((is_signed || values.scalar_type() == at::kByte) && values.dim() > 0,
                    "pack_bits: expected int8 or uint8 values with at least one dim, got ", values.scalar_type(), " ",
                    values.sizes(), ".");
  const int64_t low = is_signed ? -(1 << (bits - 1)) : 0, high = low + (1 << bits) - 1;
  TORCH_CHECK_VALUE(
      values.numel() == 0 || (values.min().item<int64_t>() >= low && values.max().item<int64_t>() <= high),
      "pack_bits: expected values in [", low, ", ", high, "] for ", bits, " bits.");
  const at::Tensor from = values.contiguous();
  const int64_t n = values.size(-1), bytes = bytes_of(n, bits), rows = n > 0 ? values.numel() / n : 0;
  at::Tensor packed = at::zeros(with_last(values.sizes(), bytes), values.options().dtype(at::kByte));
  const auto* const read = static_cast<const uint8_t*>(from.const_data_ptr());
  for (int64_t row = 0; row < rows; ++row)
    pack_row(read + row * n, n, bits, packed.mutable_data_ptr<uint8_t>() + row * bytes);
  return packed;
}

at::Tensor unpack_bits(const at::Tensor& packed, int bits, int64_t n, bool is_signed) {
  check_bits(bits);
  TORCH_CHECK_VALUE(packed.scalar_type() == at::kByte && packed.dim() > 0 && packed.size(-1) == bytes_of(n, bits),
                    "unpack_bits: expected uint8 rows of ", bytes_of(n, bits), " bytes for ", n, " values of ", bits,
                    " bits, got ", packed.scalar_type(), " ", packed.sizes(), ".");
  const at::Tensor from = packed.contiguous();
  at::Tensor values =
      at::empty(with_last(packed.sizes(), n), packed.options().dtype(is_signed ? at::kChar : at::kByte));
  const int64_t bytes = packed.size(-1), rows = bytes > 0 ? packed.numel() / bytes : 0;
  auto* const write = static_cast<uint8_t*>(values.mutable_data_ptr());
  for (int64_t row = 0; row < rows; ++row)
    unpack_row(from.const_data_ptr<uint8_t>() + row * bytes, n, bits, is_signed, write + row * n);
  return values;
}

}  // namespace bellows::quant
