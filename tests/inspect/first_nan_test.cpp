#include "bellows/inspect/first_nan.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <limits>

#include "bellows/core/log.h"
#include "fake_device.h"
#include "small_models.h"

namespace bellows::inspect {
namespace {

using testing::HasSubstr;
constexpr double inf = std::numeric_limits<double>::infinity();

/// A finding is logged; tests stay quiet.
class FirstNanTest : public testing::Test {
 protected:
  void SetUp() override { level_ = set_log_level(LogLevel::error); }
  void TearDown() override { set_log_level(level_); }
  LogLevel level_ = LogLevel::info;
};

TEST_F(FirstNanTest, NamesTheOperatorInForward) {
  FirstNan finder;
  finder.set_step(17);
  const at::Tensor x = at::zeros({3, 2});
  at::log(x - 1).add(1).sum();
  const auto found = finder.finding();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_TRUE(found->nan);
  EXPECT_FALSE(found->inf);
  EXPECT_FALSE(found->backward);
  EXPECT_EQ(found->step, 17);
  ASSERT_EQ(found->inputs.size(), 1u);
  EXPECT_EQ(found->inputs[0].name, "self");
  EXPECT_EQ(found->inputs[0].description, "Float [3, 2] cpu");
  EXPECT_FALSE(found->inputs[0].has_nan);
  EXPECT_THAT(found->to_string(), HasSubstr("aten::log produced NaN from finite inputs in forward, step 17"));
}

TEST_F(FirstNanTest, NamesTheOperatorAndItsNodeInBackward) {
  const at::Tensor x = at::zeros({2}).requires_grad_();
  FirstNan finder;
  at::sqrt(x).sum().backward();  // d sqrt(0) = 1 / 0
  const auto found = finder.finding();
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->backward);
  EXPECT_TRUE(found->inf);
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->op, "aten::div");
}

TEST_F(FirstNanTest, InputsThatWereBadAreNotTheOperatorsFault) {
  const at::Tensor bad = at::full({4}, std::nan(""));
  FirstNan finder;
  at::relu(bad + 1).mul(2).sum();
  at::full({2}, inf);
  at::zeros({2}).masked_fill(at::ones({2}, at::kBool), -inf);
  at::zeros({2}).fill_(std::nan(""));
  EXPECT_FALSE(finder.finding()) << finder.finding()->to_string();
}

TEST_F(FirstNanTest, NanFromInfinitiesIsAFinding) {
  FirstNan finder;
  at::softmax(at::full({1, 4}, -inf), 1);
  ASSERT_TRUE(finder.finding());
  EXPECT_EQ(finder.finding()->op, "aten::_softmax");
  EXPECT_TRUE(finder.finding()->inputs[0].has_inf);
}

TEST_F(FirstNanTest, InfinitiesCanBeLeftOut) {
  FirstNan finder({.infinities = false});
  at::div(at::ones({2}), at::zeros({2}));
  EXPECT_FALSE(finder.finding());
  at::div(at::zeros({2}), at::zeros({2}));
  ASSERT_TRUE(finder.finding());
  EXPECT_TRUE(finder.finding()->nan);
}

TEST_F(FirstNanTest, InPlaceOperatorIsJudgedByWhatItOverwrote) {
  FirstNan finder;
  at::Tensor x = at::ones({3});
  x.div_(at::zeros({3}));
  ASSERT_TRUE(finder.finding());
  EXPECT_EQ(finder.finding()->op, "aten::div_");
  finder.reset();
  x.add_(1);
  EXPECT_FALSE(finder.finding()) << "it held infinities before";
}

TEST_F(FirstNanTest, OperatorWithoutResultsIsSeen) {
  FirstNan finder;
  std::vector<at::Tensor> many = {at::ones({3}), at::ones({2})};
  at::_foreach_div_(many, std::vector<at::Tensor>{at::ones({3}), at::zeros({2})});
  ASSERT_TRUE(finder.finding());
  EXPECT_EQ(finder.finding()->op, "aten::_foreach_div_");
  EXPECT_EQ(finder.finding()->inputs[0].description, "2 tensors");
}

TEST_F(FirstNanTest, UninitialisedMemoryIsNoFinding) {
  at::Tensor garbage = at::full({64}, std::nan(""));
  FirstNan finder;
  at::empty({64}).zero_();
  garbage.copy_(at::ones({64}));
  at::add_out(garbage, at::ones({64}), at::ones({64}));
  EXPECT_FALSE(finder.finding());
}

TEST_F(FirstNanTest, AllFloatingTypesAndLayouts) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble}) {
    FirstNan finder;
    at::div(at::zeros({5}, type), at::zeros({5}, type));
    ASSERT_TRUE(finder.finding()) << type;
    EXPECT_TRUE(finder.finding()->nan) << type;
  }
  at::Tensor wide = at::ones({4, 6});
  wide.select(1, 3).fill_(0);
  FirstNan finder;
  at::Tensor out = at::ones({4, 12}).slice(1, 0, 12, 2);
  at::div_out(out, at::ones({4, 6}), wide);
  ASSERT_TRUE(finder.finding());
  EXPECT_TRUE(finder.finding()->inf);
}

TEST_F(FirstNanTest, LargeFiniteValuesAreFine) {
  FirstNan finder;
  at::full({1000}, 3e38).mul(-1);
  at::full({4}, 60000, at::kHalf).mul(1);
  at::full({4}, 1e308, at::kDouble).neg();
  EXPECT_FALSE(finder.finding());
}

TEST_F(FirstNanTest, NamesTheModule) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const Model model = test::model_of({{"encoder.fc.weight", weight}});
  FirstNan finder(model);
  const at::Tensor h = at::mm(at::zeros({1, 2}), weight);
  at::div(h, at::zeros({1, 2}));
  ASSERT_TRUE(finder.finding());
  EXPECT_EQ(finder.finding()->module, "after encoder.fc");
  finder.reset();
  at::div(weight, at::zeros({2, 2}));
  ASSERT_TRUE(finder.finding());
  EXPECT_EQ(finder.finding()->module, "encoder.fc");
}

TEST_F(FirstNanTest, KeepsTheFirstOnly) {
  FirstNan finder;
  at::div(at::ones({1}), at::zeros({1}));
  at::log(at::full({1}, -1.0));
  EXPECT_EQ(finder.finding()->op, "aten::div");
  EXPECT_THROW(finder.check(), c10::Error);
  finder.reset();
  EXPECT_NO_THROW(finder.check());
}

TEST_F(FirstNanTest, ErrorReachesTheCallerOfTheNextOperatorOnce) {
  FirstNan finder(FirstNan::Options{.throw_error = true});
  const at::Tensor bad = at::log(at::full({1}, -1.0));
  try {
    at::relu(bad);
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("FirstNan: aten::log produced NaN"));
  }
  EXPECT_EQ(at::relu(at::ones({2})).numel(), 2);
  finder.reset();
  at::log(at::full({1}, -1.0));
  EXPECT_THROW(at::relu(bad), c10::Error) << "armed again";
}

TEST_F(FirstNanTest, ErrorInBackwardLeavesBackward) {
  FirstNan finder(FirstNan::Options{.throw_error = true});
  const at::Tensor x = at::zeros({2}).requires_grad_();
  const at::Tensor loss = at::exp(at::sqrt(x)).mul(x).sum();
  EXPECT_THROW(loss.backward(), std::exception);
  const at::Tensor y = at::ones({2}).requires_grad_();
  at::exp(y).sum().backward();
  EXPECT_TRUE(y.grad().defined());
}

TEST_F(FirstNanTest, SeesAutogradsWorkerThreads) {
  const at::Tensor grad = test::ones_on_fake_device({4});
  FirstNan finder;
  // Both conversions run backward on the device's worker thread or after it; 1e300 is no float.
  const at::Tensor x = at::ones({4}).requires_grad_();
  x.to(at::kDouble).to(test::fake_device).backward((grad.to(at::kDouble) * 1e300));
  ASSERT_TRUE(finder.finding());
  EXPECT_TRUE(finder.finding()->backward);
  EXPECT_TRUE(finder.finding()->inf);
  EXPECT_EQ(finder.finding()->node, "ToCopyBackward0");
  finder.reset();
  const at::Tensor y = at::ones({4}).requires_grad_();
  at::sqrt(y - 1).to(test::fake_device).backward(grad);
  ASSERT_TRUE(finder.finding());
  EXPECT_TRUE(finder.finding()->backward);
  EXPECT_EQ(finder.finding()->node, "SqrtBackward0");
}

}  // namespace
}  // namespace bellows::inspect
