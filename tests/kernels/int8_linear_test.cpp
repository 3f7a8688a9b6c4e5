// Linear layers of integers: each instruction set against the reference.
#include "bellows/kernels/int8_linear.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {
namespace {

using Kind = Int8Step::Kind;

struct IntegerSize {
  int64_t rows, inner, columns;
};

/// Sizes around those of groups, panels and tiles.
const std::vector<IntegerSize> integer_sizes{{1, 1, 1},    {1, 64, 32},   {2, 3, 33},    {3, 4, 31},   {5, 17, 64},
                                             {7, 768, 40}, {13, 100, 15}, {14, 256, 96}, {15, 9, 65},  {16, 130, 48},
                                             {28, 12, 17}, {29, 511, 32}, {32, 64, 130}, {100, 40, 70}};

struct IntegerCase {
  bool x_is_signed = false, zero_point = false, bias = false;
  std::vector<Kind> steps{};
  Int8Result result = Int8Result::fp32;
};

/// Arguments with all integers that x and the weight can have.
struct IntegerData {
  IntegerData(const IntegerSize& size, const IntegerCase& which)
      : x(at::randint(256, {size.rows, size.inner}, at::kByte)),
        weight(at::randint(-128, 128, {size.columns, size.inner}, at::kChar)),
        scales(at::rand({size.columns}) * 0.02 / std::sqrt(size.inner) + 1e-4),
        bias(at::randn({size.columns})),
        added(at::randn({size.rows, size.columns})),
        packed(at::empty({static_cast<int64_t>(packed_int8_weight_bytes(size.columns, size.inner))}, at::kByte)),
        scratch(at::empty({static_cast<int64_t>(int8_linear_scratch_bytes(size.rows, size.inner, which.x_is_signed))},
                          at::kByte)) {
    packed.fill_(0x55);  // so that each number that is read must have been written
    pack_int8_weight(weight.data_ptr<int8_t>(), size.columns, size.inner, packed.data_ptr());
    args = {.rows = size.rows,
            .inner = size.inner,
            .columns = size.columns,
            .x = x.data_ptr(),
            .x_is_signed = which.x_is_signed,
            .x_scale = &x_scale,
            .x_zero_point = which.zero_point ? &x_zero_point : nullptr,
            .packed = packed.data_ptr(),
            .weight_scales = scales.data_ptr<float>(),
            .bias = which.bias ? bias.data_ptr<float>() : nullptr,
            .result = which.result,
            .y_scale = &y_scale,
            .y_zero_point = which.zero_point ? &y_zero_point : nullptr,
            .scratch = scratch.data_ptr()};
    for (const Kind kind : which.steps)
      args.steps.push_back({kind, kind == Kind::add ? added.data_ptr<float>() : nullptr});
  }

  at::Tensor result(const std::function<void(const Int8Linear&)>& compute) const {
    const at::ScalarType dtype = args.result == Int8Result::fp32   ? at::kFloat
                                 : args.result == Int8Result::int8 ? at::kChar
                                                                   : at::kByte;
    const at::Tensor y = at::full({args.rows, args.columns}, 77, dtype);
    Int8Linear with_result = args;
    with_result.y = y.data_ptr();
    compute(with_result);
    return y;
  }
  at::Tensor expected() const {
    return result([&](const Int8Linear& all) { ref::int8_linear(weight.data_ptr<int8_t>(), all); });
  }

  at::Tensor x, weight, scales, bias, added, packed, scratch;
  float x_scale = 0.03F, y_scale = 0.05F;
  int32_t x_zero_point = 99, y_zero_point = 17;
  Int8Linear args;
};

void expect_like_reference(const IntegerSize& size, const IntegerCase& which) {
  const IntegerData data(size, which);
  const at::Tensor y = data.result(int8_linear), expected = data.expected();
  const at::Tensor error = (y.to(at::kDouble) - expected.to(at::kDouble)).abs();
  if (which.result == Int8Result::fp32) {
    EXPECT_LE(error.max().item<double>(), 2e-6 * std::max(1.0, expected.abs().max().item<double>()));
  } else {  // values close to a half may be rounded to either side
    EXPECT_LE(error.max().item<double>(), 1);
    EXPECT_LE(error.sum().item<double>(), 1 + 1e-3 * static_cast<double>(error.numel()));
  }
}

/// Calls `action` once for each instruction set of this processor.
void for_instruction_sets(const std::function<void()>& action) {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t target = 1; target != 0 && target <= supported; target <<= 1) {
    if (!(supported & target)) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    action();
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(Int8Linear, MatchesReference) {
  const std::vector<IntegerCase> cases{
      {},
      {.zero_point = true, .bias = true},
      {.x_is_signed = true},
      {.x_is_signed = true, .zero_point = true, .bias = true, .steps = {Kind::relu}},
      {.bias = true, .steps = {Kind::gelu}},
      {.steps = {Kind::gelu_tanh}},
      {.steps = {Kind::tanh}},
      {.steps = {Kind::sigmoid}},
      {.steps = {Kind::silu, Kind::add}},
      {.zero_point = true, .steps = {Kind::add, Kind::relu}},
      {.result = Int8Result::int8},
      {.zero_point = true, .bias = true, .result = Int8Result::uint8},
      {.steps = {Kind::gelu}, .result = Int8Result::uint8},
      {.x_is_signed = true, .zero_point = true, .steps = {Kind::add}, .result = Int8Result::int8}};
  torch::manual_seed(1);
  for_instruction_sets([&] {
    for (size_t i = 0; i < cases.size(); ++i) {
      for (const IntegerSize& size : integer_sizes) {
        SCOPED_TRACE(c10::str("case ", i, ": ", size.rows, " x ", size.inner, " x ", size.columns));
        expect_like_reference(size, cases[i]);
      }
    }
  });
}

TEST(Int8Linear, RowsAndThreadsDoNotMatter) {
  torch::manual_seed(2);
  const IntegerData data({40, 256, 1000}, {.zero_point = true, .bias = true, .steps = {Kind::gelu}});
  const at::Tensor all = data.result(int8_linear);
  at::Tensor stolen;
  with_work_stealing([&] { stolen = data.result(int8_linear); });
  EXPECT_TRUE(stolen.equal(all));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(data.result(int8_linear).equal(all));
  at::set_num_threads(threads);
  IntegerData first = data;
  for (const int64_t rows : {1, 13, 14, 15}) {
    first.args.rows = rows;
    EXPECT_TRUE(first.result(int8_linear).equal(all.slice(0, 0, rows))) << rows;
  }
}

TEST(Int8Linear, KeepsWhatIsNotANumber) {
  for_instruction_sets([] {
    IntegerData data({4, 8, 40}, {.steps = {Kind::add, Kind::relu}});
    data.added[1][35] = NAN;
    data.added[2][3] = INFINITY;
    data.added[3][39] = -INFINITY;
    const at::Tensor y = data.result(int8_linear);
    EXPECT_EQ(y.isnan().sum().item<int>(), 1);
    EXPECT_TRUE(std::isnan(y[1][35].item<float>()));
    EXPECT_EQ(y[3][39].item<float>(), 0);
    for (const Int8Result result : {Int8Result::int8, Int8Result::uint8}) {
      data.args.result = result;
      const at::Tensor integers = data.result(int8_linear).to(at::kInt);
      const int low = result == Int8Result::int8 ? -128 : 0;
      EXPECT_EQ(integers[1][35].item<int>(), low);
      EXPECT_EQ(integers[2][3].item<int>(), low + 255);
    }
  });
}

}  // namespace
}  // namespace bellows::kernels
