// Linear layers with quantized weights: each instruction set against the reference.
#include "bellows/kernels/weight_only_linear.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace bellows::kernels {
namespace {

struct LinearSize {
  int64_t rows, inner, columns, group_size;
};

/// Sizes around those of vectors, panels, segments and blocks of rows.
const std::vector<LinearSize> linear_sizes{
    {1, 1, 1, 1},     {1, 64, 64, 32},   {2, 96, 80, 32},   {3, 33, 17, 33},   {4, 256, 128, 128}, {5, 100, 15, 20},
    {6, 77, 65, 11},  {7, 300, 31, 300}, {8, 512, 200, 64}, {8, 513, 48, 513}, {9, 130, 130, 65},  {16, 40, 33, 40},
    {17, 264, 70, 8}, {64, 96, 100, 96}, {65, 31, 16, 31},  {130, 70, 129, 35}};

enum class ZeroPoints { none, some };

/// A weight with all values that its integers can have, and its arguments.
struct RandomWeight {
  WeightFormat format;
  at::Tensor values, scales, zero_points;

  RandomWeight(const LinearSize& size, int bits, bool is_signed, ZeroPoints zeros) {
    format = {.bits = bits,
              .is_signed = is_signed,
              .has_zero_points = zeros == ZeroPoints::some,
              .columns = size.columns,
              .inner = size.inner,
              .group_size = size.group_size};
    const int64_t row_bytes = bits == 8 ? size.inner : (size.inner + 1) / 2, groups = size.inner / size.group_size;
    values = at::randint(256, {size.columns, row_bytes}, at::kByte);
    scales = at::rand({size.columns, groups}) * 0.1 + 0.01;
    const int64_t half = 1 << (bits - 1), low = is_signed ? -half : 0;
    if (zeros == ZeroPoints::some) zero_points = at::randint(low, low + 2 * half, {size.columns, groups}, at::kInt);
  }

  QuantizedWeight arguments() const {
    return {format, values.data_ptr(), scales.data_ptr<float>(),
            zero_points.defined() ? zero_points.data_ptr<int32_t>() : nullptr};
  }
  /// Filled with NaN before, so that each number that is read must have been written.
  at::Tensor packed() const {
    const at::Tensor result = at::empty({static_cast<int64_t>(packed_weight_bytes(format))}, at::kByte).fill_(0xff);
    pack_weight(arguments(), result.data_ptr());
    return result;
  }
};

WeightOnlyLinear arguments_of(const WeightFormat& format, const at::Tensor& x, const at::Tensor& bias,
                              const at::Tensor& y) {
  return {.dtype = x.scalar_type(),
          .rows = x.size(0),
          .x = x.data_ptr(),
          .x_row = x.stride(0),
          .format = format,
          .bias = bias.defined() ? bias.data_ptr<float>() : nullptr,
          .y = y.data_ptr(),
          .y_row = y.stride(0)};
}

at::Tensor run_linear(const RandomWeight& weight, const at::Tensor& x, const at::Tensor& bias) {
  const at::Tensor packed = weight.packed();
  const at::Tensor y = at::full({x.size(0), weight.format.columns}, NAN, x.options());
  const auto scratch_bytes = weight_only_linear_scratch_bytes(x.scalar_type(), weight.format, x.size(0));
  const at::Tensor scratch = at::empty({static_cast<int64_t>(scratch_bytes)}, at::kByte).fill_(0xff);
  WeightOnlyLinear args = arguments_of(weight.format, x, bias, y);
  args.packed = packed.data_ptr();
  args.scratch = scratch.data_ptr();
  weight_only_linear(args);
  return y;
}

at::Tensor run_reference(const RandomWeight& weight, const at::Tensor& x, const at::Tensor& bias) {
  const at::Tensor y = at::full({x.size(0), weight.format.columns}, NAN, x.options());
  ref::weight_only_linear(weight.arguments(), arguments_of(weight.format, x, bias, y));
  return y;
}

void use_instruction_set(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().DeInit();
}

/// Calls action() for each instruction set of this processor, and for the plain code.
void for_each_instruction_set(const std::function<void()>& action) {
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_SCALAR}) {
    use_instruction_set(0);
    if (!(hwy::SupportedTargets() & target)) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    use_instruction_set(target);
    action();
  }
  use_instruction_set(0);
}

/// Relative to the largest sum of absolute products. Zero points double the magnitude of the summed numbers.
double linear_tolerance(c10::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : 1.0 / 256;
}

void expect_equal(const at::Tensor& made, const at::Tensor& expected, const RandomWeight& weight, const at::Tensor& x,
                  const std::string& what) {
  const double largest = weight.format.bits == 8 ? 255 : 15;
  const double scale = x.to(at::kDouble).abs().sum(1).max().item<double>() * 0.11 * largest + 1;
  const double error = (made.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(error, linear_tolerance(x.scalar_type()) * scale) << what;
}

struct FormatCase {
  int bits;
  bool is_signed;
  ZeroPoints zero_points;
};

class WeightOnlyLinearTest : public ::testing::TestWithParam<FormatCase> {
 protected:
  void SetUp() override { torch::manual_seed(3); }

  static RandomWeight weight_of(const LinearSize& size) {
    return {size, GetParam().bits, GetParam().is_signed, GetParam().zero_points};
  }
};

TEST_P(WeightOnlyLinearTest, EqualsTheReference) {
  for (const LinearSize& size : linear_sizes) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const RandomWeight weight = weight_of(size);
      const at::Tensor x = at::randn({size.rows, size.inner}).to(dtype);
      const at::Tensor bias = size.rows % 2 ? at::randn({size.columns}) : at::Tensor();
      const at::Tensor expected = run_reference(weight, x, bias);
      for_each_instruction_set([&] {
        expect_equal(run_linear(weight, x, bias), expected, weight, x,
                     "rows " + std::to_string(size.rows) + " inner " + std::to_string(size.inner) + " columns " +
                         std::to_string(size.columns) + " " + c10::toString(dtype));
      });
    }
  }
}

TEST_P(WeightOnlyLinearTest, UnpacksWhatWasPacked) {
  for (const LinearSize& size : linear_sizes) {
    const RandomWeight weight = weight_of(size);
    const at::Tensor integers = at::full_like(weight.values, 0xff);
    unpack_weight(weight.packed().data_ptr(), weight.format, integers.data_ptr());
    at::Tensor expected = weight.values.clone();
    if (weight.format.bits == 4 && size.inner % 2 == 1)
      expected.select(1, -1).bitwise_and_(15);  // half of the last byte
    EXPECT_TRUE(integers.equal(expected)) << "inner " << size.inner << " columns " << size.columns;
  }
}

TEST_P(WeightOnlyLinearTest, ReferenceEqualsLibtorch) {
  const LinearSize size{3, 24, 10, 8};
  const RandomWeight weight = weight_of(size);
  at::Tensor integers = weight.values;
  if (weight.format.bits == 4) {
    const at::Tensor high = integers.bitwise_right_shift(4), low = integers.bitwise_and(15);
    integers = at::stack({low, high}, 2).reshape({size.columns, size.inner});
  }
  integers = integers.to(at::kDouble);
  const int64_t values = weight.format.bits == 8 ? 256 : 16;
  if (weight.format.is_signed) integers = at::where(integers >= values / 2, integers - values, integers);
  integers = integers.reshape({size.columns, -1, size.group_size});
  if (weight.zero_points.defined()) integers = integers - weight.zero_points.unsqueeze(2);
  const at::Tensor real = (integers * weight.scales.unsqueeze(2)).reshape({size.columns, size.inner});
  const at::Tensor x = at::randn({size.rows, size.inner}), bias = at::randn({size.columns});
  const at::Tensor expected = at::linear(x.to(at::kDouble), real, bias.to(at::kDouble));
  EXPECT_TRUE(at::allclose(run_reference(weight, x, bias).to(at::kDouble), expected, 1e-5, 1e-4));
}

TEST_P(WeightOnlyLinearTest, IsBitIdenticalForAnyNumberOfThreads) {
  const RandomWeight weight = weight_of({5, 520, 1000, 130});
  const at::Tensor x = at::randn({5, 520}), bias = at::randn({1000});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    results.push_back(run_linear(weight, x, bias));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
}

TEST_P(WeightOnlyLinearTest, RowsDoNotDependOnTheNumberOfRows) {
  const RandomWeight weight = weight_of({70, 300, 81, 300});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({70, 300}).to(dtype), bias = at::randn({81});
    for_each_instruction_set([&] {
      const at::Tensor all = run_linear(weight, x, bias);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 24, 64, 65}) {
        const int64_t first = 70 - rows;
        EXPECT_TRUE(at::equal(run_linear(weight, x.slice(0, first), bias), all.slice(0, first))) << rows;
      }
    });
  }
}

TEST_P(WeightOnlyLinearTest, AcceptsStridedRowsAndUnalignedPointers) {
  const RandomWeight aligned = weight_of({4, 96, 75, 32});
  RandomWeight weight = aligned;
  const auto shifted = [](const at::Tensor& tensor) {
    const at::Tensor memory = at::empty({tensor.numel() + 1}, tensor.options());
    return memory.slice(0, 1).view(tensor.sizes()).copy_(tensor);
  };
  weight.values = shifted(aligned.values);
  weight.scales = shifted(aligned.scales);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor dense = at::randn({4, 96}).to(dtype), bias = shifted(at::randn({75}));
    const at::Tensor x = at::full({4, 101}, NAN, dense.options()).slice(1, 3, 99).copy_(dense);
    const at::Tensor memory = at::full({4, 80}, 7, dense.options()), y = memory.slice(1, 1, 76);
    const at::Tensor packed = weight.packed();
    const auto scratch_bytes = weight_only_linear_scratch_bytes(dtype, weight.format, 4);
    const at::Tensor scratch = at::empty({static_cast<int64_t>(scratch_bytes) + 4}, at::kByte).slice(0, 4);
    WeightOnlyLinear args = arguments_of(weight.format, x, bias, y);
    args.packed = packed.data_ptr();
    args.scratch = scratch.data_ptr();
    weight_only_linear(args);
    EXPECT_TRUE(at::equal(y, run_linear(aligned, dense, bias)));
    EXPECT_TRUE((memory.slice(1, 0, 1) == 7).all().item<bool>());
    EXPECT_TRUE((memory.slice(1, 76) == 7).all().item<bool>());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, WeightOnlyLinearTest,
    ::testing::Values(FormatCase{8, true, ZeroPoints::none}, FormatCase{8, false, ZeroPoints::none},
                      FormatCase{8, true, ZeroPoints::some}, FormatCase{8, false, ZeroPoints::some},
                      FormatCase{4, true, ZeroPoints::none}, FormatCase{4, false, ZeroPoints::none},
                      FormatCase{4, true, ZeroPoints::some}, FormatCase{4, false, ZeroPoints::some}),
    [](const auto& one) {
      return std::string(one.param.is_signed ? "int" : "uint") + std::to_string(one.param.bits) +
             (one.param.zero_points == ZeroPoints::some ? "ZeroPoints" : "");
    });

TEST(WeightOnlyLinear, HandlesEmptySizes) {
  const RandomWeight weight({2, 8, 5, 4}, 8, true, ZeroPoints::none);
  EXPECT_EQ(run_linear(weight, at::empty({0, 8}), {}).numel(), 0);
  RandomWeight narrow({2, 8, 5, 4}, 4, true, ZeroPoints::none);
  narrow.format.inner = narrow.format.group_size = 0;
  const at::Tensor bias = at::randn({5});
  EXPECT_TRUE(at::equal(run_linear(narrow, at::empty({2, 0}), bias), bias.expand({2, 5})));
}

TEST(WeightOnlyLinear, PackedWeightsAreSmall) {
  for (const int bits : {4, 8}) {
    for (const bool has_zero_points : {false, true}) {
      const WeightFormat format{
          .bits = bits, .has_zero_points = has_zero_points, .columns = 768, .inner = 512, .group_size = 32};
      const double groups = 768 * 512 / 32, original = 768 * 512 * bits / 8 + groups * (has_zero_points ? 8 : 4);
      EXPECT_LE(static_cast<double>(packed_weight_bytes(format)), 1.02 * original);
    }
  }
}

TEST(WeightOnlyLinear, PropagatesNanToItsRowOnly) {
  const RandomWeight weight({3, 64, 40, 32}, 4, false, ZeroPoints::some);
  const at::Tensor x = at::randn({3, 64});
  const at::Tensor clean = run_linear(weight, x, {});
  x[1][5] = NAN;
  const at::Tensor made = run_linear(weight, x, {});
  EXPECT_TRUE(made[1].isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(made[0], clean[0]));
  EXPECT_TRUE(at::equal(made[2], clean[2]));
}

/// Returns the message of the c10::ValueError that the action throws.
std::string value_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(WeightOnlyLinear, RefusesBadArguments) {
  const auto expect = [](const std::function<void()>& action, const std::string& part) {
    EXPECT_NE(value_error(action).find(part), std::string::npos) << value_error(action);
  };
  expect([] { packed_weight_bytes({.bits = 3, .columns = 1, .inner = 4, .group_size = 4}); }, "must be 8 or 4, got 3");
  expect([] { packed_weight_bytes({.columns = 1, .inner = 40, .group_size = 32}); }, "group_size 32 and inner 40");
  RandomWeight weight({1, 8, 4, 4}, 8, true, ZeroPoints::some);
  weight.zero_points[2][1] = 40'000;
  expect([&] { weight.packed(); }, "got 40000 (column 2, group 1)");
  weight.zero_points = at::Tensor();
  expect([&] { weight.packed(); }, "`zero_points` is null");
  WeightOnlyLinear args{.dtype = at::kHalf, .rows = 1, .format = weight.format};
  expect([&] { weight_only_linear(args); }, "must be Float or BFloat16, got Half");
  args.dtype = at::kFloat;
  expect([&] { weight_only_linear(args); }, "must not be null");
}

}  // namespace
}  // namespace bellows::kernels
