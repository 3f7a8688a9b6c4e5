// Attention with 8-bit integers: each instruction set against the reference.
#include "bellows/kernels/int8_attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace bellows::kernels {
namespace {

struct HeadSize {
  int64_t batch, rows, columns, width, value_width;
};

/// Sizes around those of groups, panels and tiles.
const std::vector<HeadSize> head_sizes{{1, 1, 1, 1, 1},     {2, 3, 5, 7, 9},     {3, 14, 14, 64, 64},
                                       {2, 15, 33, 20, 40}, {4, 29, 32, 17, 33}, {1, 128, 128, 64, 64},
                                       {2, 5, 131, 65, 31}};

template <class T>
Matrices<T> matrices_of(T* data, int64_t rows, int64_t width, int64_t gap) {
  return {.data = data, .outer = rows * (width + gap), .row = width + gap};
}

/// Compares with the reference. A power close to a half may be rounded to the other side, so that a result differs by a
/// part of a value's range.
void expect_near_reference(const HeadSize& size, float spread) {
  constexpr int64_t gap = 3;  // between rows, with NaN that must not be read
  const auto made = [&](int64_t rows, int64_t width) {
    at::Tensor all = at::full({size.batch, rows, width + gap}, NAN);
    all.narrow(2, 0, width).copy_(at::randn({size.batch, rows, width}) * spread);
    return all;
  };
  const at::Tensor query = made(size.rows, size.width), key = made(size.columns, size.width),
                   value = made(size.columns, size.value_width);
  at::Tensor got = made(size.rows, size.value_width), expected = got.clone();
  Int8Attention args{.batch = size.batch,
                     .rows = size.rows,
                     .columns = size.columns,
                     .width = size.width,
                     .value_width = size.value_width,
                     .query = matrices_of(query.const_data_ptr<float>(), size.rows, size.width, gap),
                     .key = matrices_of(key.const_data_ptr<float>(), size.columns, size.width, gap),
                     .value = matrices_of(value.const_data_ptr<float>(), size.columns, size.value_width, gap),
                     .query_scale = 0.02F,
                     .key_scale = 0.03F,
                     .value_scale = 0.025F,
                     .scale = 1 / std::sqrt(static_cast<float>(size.width)),
                     .result = matrices_of(got.mutable_data_ptr<float>(), size.rows, size.value_width, gap)};
  int8_attention(args);
  args.result.data = expected.mutable_data_ptr<float>();
  ref::int8_attention(args);
  EXPECT_TRUE(got.narrow(2, size.value_width, gap).isnan().all().item<bool>()) << "writes behind a row";
  const at::Tensor error = (got - expected).narrow(2, 0, size.value_width).abs();
  EXPECT_LE(error.max().item<double>(), 128 * args.value_scale / 255) << "more than one power differs by one";
  EXPECT_LE(error.mean().item<double>(), 1e-4);
}

TEST(Int8Attention, EachInstructionSetIsNearTheReference) {
  torch::manual_seed(1);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const HeadSize& size : head_sizes) {
      for (const float spread : {0.5F, 4.0F}) {  // with 4, many values saturate
        SCOPED_TRACE(::testing::Message() << hwy::TargetName(target) << ": " << size.rows << " rows, " << size.columns
                                          << " columns, widths " << size.width << " and " << size.value_width);
        expect_near_reference(size, spread);
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(Int8Attention, NaNIsTheSmallestInteger) {
  const std::vector<float> query{NAN, 0}, key{1, 0, -1, 0}, value{1, 2};
  float result = 0;
  const Int8Attention args{.batch = 1,
                           .rows = 1,
                           .columns = 2,
                           .width = 2,
                           .value_width = 1,
                           .query = {.data = query.data(), .row = 2},
                           .key = {.data = key.data(), .row = 2},
                           .value = {.data = value.data(), .row = 1},
                           .query_scale = 1,
                           .key_scale = 1,
                           .value_scale = 1,
                           .result = {.data = &result, .row = 1}};
  int8_attention(args);
  EXPECT_EQ(result, 2);  // the logits are −128 and 128
}

}  // namespace
}  // namespace bellows::kernels
