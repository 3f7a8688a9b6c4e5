#include "bellows/tap/half_operators.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace bellows::tap {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Pretends that libtorch has no fast fp16 kernels, so that all operators convert.
class FastHalf : public testing::Test {
 protected:
  FastHalf() { set_half_features(HalfFeatures{.onednn = false}); }
  ~FastHalf() override { set_half_features({}); }
};

/// A function of half operands that calls one operator.
struct HalfCase {
  const char* name;
  Tensors operands;
  std::function<at::Tensor(const Tensors&)> run;
};

std::vector<HalfCase> half_cases() {
  torch::manual_seed(3);
  const auto half = [](at::IntArrayRef sizes) { return torch::randn(sizes).to(at::kHalf); };
  return {
      {"mm", {half({17, 33}), half({33, 9})}, [](auto& t) { return t[0].mm(t[1]); }},
      {"mm transposed", {half({17, 33}), half({9, 33})}, [](auto& t) { return t[0].mm(t[1].t()); }},
      {"empty mm", {half({4, 0}), half({0, 3})}, [](auto& t) { return t[0].mm(t[1]); }},
      {"addmm",
       {half({9}), half({17, 33}), half({33, 9})},
       [](auto& t) { return at::addmm(t[0], t[1], t[2], 0.5, 2); }},
      {"bmm", {half({3, 17, 33}), half({3, 33, 9})}, [](auto& t) { return t[0].bmm(t[1]); }},
      {"baddbmm",
       {half({3, 17, 9}), half({3, 17, 33}), half({3, 33, 9})},
       [](auto& t) { return at::baddbmm(t[0], t[1], t[2]); }},
      {"mv", {half({17, 33}), half({33})}, [](auto& t) { return t[0].mv(t[1]); }},
      {"addmv", {half({17}), half({17, 33}), half({33})}, [](auto& t) { return at::addmv(t[0], t[1], t[2]); }},
      {"linear", {half({2, 5, 33}), half({9, 33}), half({9})}, [](auto& t) { return at::linear(t[0], t[1], t[2]); }},
      {"conv2d",
       {half({2, 6, 9, 8}), half({4, 3, 3, 3}), half({4})},
       [](auto& t) { return at::conv2d(t[0], t[1], t[2], 2, 1, 1, 2); }},
      {"conv1d without bias", {half({2, 6, 9}), half({4, 6, 3})}, [](auto& t) { return at::conv1d(t[0], t[1]); }},
      {"conv_transpose2d",
       {half({2, 6, 5, 4}), half({6, 4, 3, 3}), half({4})},
       [](auto& t) { return at::conv_transpose2d(t[0], t[1], t[2], 2); }},
  };
}

/// The result and the gradients of all operands, for the gradient `upstream`.
Tensors run_with_gradients(const HalfCase& one, at::ScalarType dtype, bool guarded) {
  Tensors operands, made;
  for (const at::Tensor& operand : one.operands) operands.push_back(operand.to(dtype).clone().requires_grad_());
  {
    const FastHalfGuard guard(guarded);
    made.push_back(one.run(operands));
  }
  const at::Tensor upstream = torch::linspace(-1, 1, made[0].numel()).reshape(made[0].sizes()).to(at::kHalf).to(dtype);
  made[0].backward(upstream);
  for (const at::Tensor& operand : operands) made.push_back(operand.grad().to(at::kHalf));
  made[0] = made[0].detach().to(at::kHalf);
  return made;
}

TEST_F(FastHalf, EqualsRoundedFp32ForwardAndBackward) {
  for (const HalfCase& one : half_cases()) {
    const Tensors ours = run_with_gradients(one, at::kHalf, true), wide = run_with_gradients(one, at::kFloat, false);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), at::kHalf) << one.name;
      // Biases add up their gradients outside of the operators: those round once more.
      const bool sum = i > 0 && one.operands[i - 1].dim() < one.operands.back().dim();
      EXPECT_TRUE(sum ? torch::allclose(ours[i], wide[i], 2e-3, 2e-3) : ours[i].equal(wide[i]))
          << one.name << ", tensor " << i;
    }
  }
}

TEST_F(FastHalf, LeavesOperatorsOutsideOfTheGuardAlone) {
  const at::Tensor a = torch::full({64, 64}, 3.3).to(at::kHalf);
  { const FastHalfGuard installed; }
  const FastHalfGuard off(false);
  EXPECT_FALSE(FastHalfGuard::active());
  const int64_t before = FastHalfGuard::converted();
  a.mm(a);
  at::conv1d(a.unsqueeze(0), a.unsqueeze(-1));
  EXPECT_EQ(FastHalfGuard::converted(), before);
  const FastHalfGuard on;
  a.mm(a);
  EXPECT_EQ(FastHalfGuard::converted(), before + 1);
  a.to(at::kFloat).mm(a.to(at::kFloat));
  EXPECT_EQ(FastHalfGuard::converted(), before + 1);
}

TEST_F(FastHalf, AffectsOnlyItsThread) {
  const FastHalfGuard guard;
  EXPECT_TRUE(FastHalfGuard::active());
  bool active = true;
  std::thread([&] { active = FastHalfGuard::active(); }).join();
  EXPECT_FALSE(active);
}

TEST_F(FastHalf, OverflowBecomesInfiniteAsWithRounding) {
  const FastHalfGuard guard;
  const auto product = [](double x) {
    return torch::full({1, 4}, x).to(at::kHalf).mm(torch::full({4, 1}, 128.).to(at::kHalf)).item<double>();
  };
  EXPECT_EQ(product(127.9375), 65504);                               // the largest finite value
  EXPECT_EQ(product(128), std::numeric_limits<double>::infinity());  // 65536
  EXPECT_EQ(product(-128), -std::numeric_limits<double>::infinity());
  const at::Tensor image = torch::full({1, 4, 2, 2}, 128.).to(at::kHalf);
  EXPECT_TRUE(at::conv2d(image, torch::full({2, 4, 1, 1}, 128.).to(at::kHalf)).isinf().all().item<bool>());
  // The sum exceeds the range of fp16 on the way, but its result does not.
  const at::Tensor signs = torch::tensor({1., 1., -1., -1.}).to(at::kHalf).reshape({1, 4});
  EXPECT_EQ(signs.mm(torch::full({4, 1}, 60000.).to(at::kHalf)).item<double>(), 0);
}

TEST_F(FastHalf, ReportsTheErrorsOfLibtorch) {
  const FastHalfGuard guard;
  const at::Tensor a = torch::ones({2, 3}, at::kHalf);
  EXPECT_THROW(a.mm(a), c10::Error);
  EXPECT_THROW(a.mm(torch::ones({3, 2})), c10::Error);  // fp32
  EXPECT_THROW(at::conv2d(torch::ones({1, 2, 4, 4}, at::kHalf), torch::ones({2, 3, 3, 3}, at::kHalf)), c10::Error);
}

TEST(HalfFeatures, DecideWhichOperatorsConvert) {
  const HalfFeatures slow{.onednn = false}, fast{.onednn = true};
  for (const auto op : {HalfOperator::matmul, HalfOperator::matrix_vector, HalfOperator::convolution,
                        HalfOperator::convolution_backward})
    EXPECT_TRUE(converts_half(op, slow));
  EXPECT_FALSE(converts_half(HalfOperator::matmul, fast));
  EXPECT_TRUE(converts_half(HalfOperator::convolution_backward, fast));
}

TEST(HalfFeatures, FollowTheLimitOfOnednn) {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const bool limited = limit && std::string(limit) == "AVX2";
  EXPECT_TRUE(!limited || !half_features().onednn);
  set_half_features(HalfFeatures{.onednn = true});
  EXPECT_TRUE(half_features().onednn);
  set_half_features({});
}

}  // namespace
}  // namespace bellows::tap
