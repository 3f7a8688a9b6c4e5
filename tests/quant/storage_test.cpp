// Integers without gaps, and 8-bit floating-point values.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/quant/affine.h"
#include "bellows/quant/float8.h"
#include "bellows/quant/packed.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::quant {

namespace {

using testing::HasSubstr;

}  // namespace

TEST(Packed, KeepsEveryValueOfEveryWidth) {
  at::manual_seed(1);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const bool is_signed : {false, true}) {
      for (const int64_t n : {1, 7, 8, 9, 64, 129}) {
        const int64_t low = is_signed ? -(1 << (bits - 1)) : 0;
        const at::Tensor values =
            torch::randint(low, low + (1 << bits), {3, n}, at::kLong).to(is_signed ? at::kChar : at::kByte);
        const at::Tensor packed = pack_bits(values, bits);
        EXPECT_EQ(packed.sizes(), at::IntArrayRef({3, (n * bits + 7) / 8}));
        EXPECT_TRUE(unpack_bits(packed, bits, n, is_signed).equal(values)) << bits << " bits, " << n << " values";
      }
    }
  }
}

TEST(Packed, TheLowHalfOfAByteComesFirst) {
  const at::Tensor values = torch::tensor({1, 2, -1, -8}).to(at::kChar);
  EXPECT_TRUE(pack_bits(values, 4).equal(torch::tensor({0x21, 0x8f}).to(at::kByte)));
}

TEST(Packed, FourBitsTakeAnEighthOfTheBytes) {
  const at::Tensor x = torch::randn({64, 256});
  const QuantizedTensor quantized = quantize(x, group_scheme(4, 64));
  const auto bytes = static_cast<double>(pack_bits(quantized.values, 4).nbytes() + quantized.parameters.scale.nbytes());
  EXPECT_LE(bytes / static_cast<double>(x.nbytes()), 0.16);
}

TEST(Packed, RejectsBadInput) {
  const at::Tensor values = torch::tensor({3, 16}).to(at::kByte);
  EXPECT_THAT(message_of([&] { pack_bits(values, 4); }), HasSubstr("values in [0, 15] for 4 bits"));
  EXPECT_THAT(message_of([&] { pack_bits(values, 0); }), HasSubstr("expected 1 to 8 bits, got 0"));
  EXPECT_THAT(message_of([&] { pack_bits(values.to(at::kInt), 4); }), HasSubstr("int8 or uint8"));
  EXPECT_THAT(message_of([&] { unpack_bits(values, 4, 5, true); }),
              HasSubstr("rows of 3 bytes for 5 values of 4 bits"));
}

TEST(Float8, ValuesAreThoseOfPyTorch) {
  const Golden golden("quant/integers.safetensors");
  const at::Tensor x = golden("x").slice(0, 2);
  const Float8Tensor quantized = quantize_float8(x, at::kFloat8_e4m3fn);
  // With the scale 1, the values are those of a plain conversion.
  const at::Tensor scaled = (x / quantized.scale).clamp(-448, 448).to(at::kFloat8_e4m3fn);
  EXPECT_TRUE(quantized.values.view(at::kByte).equal(scaled.view(at::kByte)));
  EXPECT_TRUE(x.clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte).equal(golden("e4m3")));
}

TEST(Float8, TheLargestMagnitudeIsExact) {
  at::manual_seed(2);
  const at::Tensor x = torch::randn({8, 32});
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const Float8Tensor quantized = quantize_float8(x, dtype, {.granularity = Granularity::token});
    EXPECT_EQ(quantized.scale.sizes(), at::IntArrayRef({8}));
    const at::Tensor error = (quantized.dequantize() - x).abs();
    EXPECT_LE((error / x.abs()).min().item<float>(), 1e-6);
    // Half of the distance between neighbors: 3 or 2 bits of mantissa; below the normal numbers, the distance is fixed.
    const double relative = dtype == at::kFloat8_e4m3fn ? 1.0 / 16 : 1.0 / 8;
    EXPECT_TRUE((error <= relative * x.abs() + quantized.scale.unsqueeze(1) * 0x1p-9).all().item<bool>());
  }
  EXPECT_TRUE(quantize_float8(at::zeros({4}), at::kFloat8_e5m2).dequantize().equal(at::zeros({4})));
}

TEST(Float8, RejectsBadInput) {
  EXPECT_THAT(message_of([] { quantize_float8(at::ones({2}), at::kHalf); }), HasSubstr("or Float8_e5m2, got Half"));
  EXPECT_THAT(message_of([] { quantize_float8(at::ones({2}) / 0, at::kFloat8_e5m2); }), HasSubstr("finite values"));
}

}  // namespace bellows::quant
