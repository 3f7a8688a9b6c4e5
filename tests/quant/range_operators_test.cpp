// Operators for the ranges of quantization-aware training, against the formulas of calibration.
#include "bellows/quant/training/range_operators.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/quant/observer.h"
#include "tests/support/errors.h"

namespace bellows::quant {
namespace {

using ::testing::HasSubstr;

void expect_equal(const Parameters& made, const Parameters& expected) {
  EXPECT_TRUE(made.scale.equal(expected.scale)) << made.scale << expected.scale;
  EXPECT_TRUE(made.zero_point.equal(expected.zero_point)) << made.zero_point << expected.zero_point;
}

}  // namespace

TEST(RangeOperators, ParametersAreThoseOfCalibration) {
  for (const auto& [low, high] : std::vector<std::array<float, 2>>{{0, 6}, {-1, 3}, {-3, -1}, {0.5F, 0.7F}, {0, 0}}) {
    SCOPED_TRACE(c10::str(low, " to ", high));
    const at::Tensor range = torch::tensor({low, high}), lowest = torch::tensor(low), highest = torch::tensor(high);
    expect_equal(range_parameters(range, false), choose_parameters(lowest, highest, {}));
    expect_equal(range_parameters(range, true), choose_parameters(lowest, highest, {.symmetric = low < 0}));
  }
  torch::manual_seed(1);
  for (const at::Tensor& weight : {torch::randn({5, 7}), torch::randn({4, 3, 3, 3}), torch::zeros({2, 2})})
    expect_equal(row_parameters(weight, 127.5), choose_parameters(weight, weight_scheme()));
}

TEST(RangeOperators, RangesMoveLikeThoseOfObservers) {
  torch::manual_seed(2);
  MovingRange expected;
  at::Tensor range = expected.bounds().clone();
  for (int batch = 0; batch < 4; ++batch) {
    const at::Tensor x = torch::randn({3, 50}) * (1 + batch);
    const auto [low, high] = x.aminmax();
    expected.update(low, high, 0.1);
    const at::Tensor before = range.clone();
    const at::Tensor next = moving_range(range, x, 0.1);
    EXPECT_TRUE(range.equal(before)) << "the argument does not change";
    range = next;
    EXPECT_TRUE(range.equal(expected.bounds())) << range << expected.bounds();
  }
}

TEST(RangeOperators, BadInput) {
  const at::Tensor three = torch::zeros(3), x = torch::zeros(4);
  EXPECT_THAT(message_of([&] { moving_range(three, x, 0.1); }), HasSubstr("expected a range of two fp32 numbers"));
  EXPECT_THAT(message_of([&] { range_parameters(torch::zeros(2, torch::kDouble), true); }),
              HasSubstr("got Double [2]"));
  EXPECT_THAT(message_of([&] {
                row_parameters(torch::zeros({2, 2}, torch::kInt), 127.5);
              }),
              HasSubstr("expected a floating-point weight with rows, got Int [2, 2]"));
}

}  // namespace bellows::quant
