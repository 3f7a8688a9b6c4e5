// The operators of nn on the GPU, against the same operators in double on the CPU.
#include <gtest/gtest.h>

#include "bellows/nn/activation.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/dropout_norm.h"
#include "bellows/nn/norm.h"
#include "tests/device/support.h"

namespace bellows::nn {

namespace {

using test::gpu;
using test::Tensors;
using Function = std::function<at::Tensor(const Tensors&)>;

/// Relative errors of whole tensors: some units in the last place of the type.
double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 2e-6;
    case at::kHalf:
      return 2e-3;
    default:
      return 1.5e-2;
  }
}

/// In each type, the inputs are rounded to this type first, so that both sides start from equal values.
void expect_as_on_cpu(const Function& function, const Tensors& values) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::str(dtype));
    const Tensors inputs = test::leaves_on(gpu, dtype, values);
    const Tensors ours = test::result_and_gradients(function, inputs);
    const Tensors again = test::result_and_gradients(function, test::leaves_on(gpu, dtype, values));
    const Tensors expected = test::result_and_gradients(function, test::leaves_on(at::kCPU, at::kDouble, inputs));
    ASSERT_EQ(ours.size(), expected.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE(test::relative_error(ours[i], expected[i]), tolerance_of(dtype)) << "tensor " << i;
      EXPECT_TRUE(at::equal(ours[i], again[i])) << "tensor " << i << " differs in a second run";
    }
  }
}

}  // namespace

class NormOnDevice : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(NormOnDevice, EqualsTheCpu) {
  const auto [rows, columns] = GetParam();
  torch::manual_seed(1);
  const Tensors all = {torch::randn({rows, columns}), torch::rand({columns}) + 0.5, torch::randn({columns})};
  expect_as_on_cpu([n = columns](const Tensors& t) { return layer_norm(t[0], {n}, t[1], t[2]); }, all);
  expect_as_on_cpu([n = columns](const Tensors& t) { return rms_norm(t[0], {n}, t[1]); }, {all[0], all[1]});
  expect_as_on_cpu([](const Tensors& t) { return dropout_add_norm(t[0], t[3], t[1], t[2], {.p = 0}); },
                   {all[0], all[1], all[2], torch::randn({rows, columns})});
}

INSTANTIATE_TEST_SUITE_P(Sizes, NormOnDevice,
                         testing::Values(std::tuple(1, 1), std::tuple(7, 33), std::tuple(300, 768),
                                         std::tuple(5000, 128), std::tuple(3, 12289)));

TEST(DropoutNormOnDevice, DrawsTheMaskOfTheCpu) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({37, 257}) + 5, residual = torch::randn({37, 257});
  const auto sum_on = [&](const c10::Device& device) {
    torch::manual_seed(3);
    return dropout_add_norm_sum(x.to(device), residual.to(device), {}, {}, {.p = 0.3}).second.cpu();
  };
  EXPECT_TRUE(at::allclose(sum_on(gpu), sum_on(at::kCPU), 1e-6, 1e-6));
  const at::Tensor sum = sum_on(gpu);
  EXPECT_NEAR(sum.eq(residual).to(at::kDouble).mean().item<double>(), 0.3, 0.03);
  torch::manual_seed(4);
  const Tensors leaves = test::leaves_on(gpu, at::kFloat, {x, residual});
  const auto [y, total] = dropout_add_norm_sum(leaves[0], leaves[1], {}, {}, {.p = 0.3});
  total.sum().backward();
  const at::Tensor dropped = total.detach().eq(leaves[1].detach());
  EXPECT_TRUE(at::equal(leaves[0].grad().eq(0), dropped)) << "backward uses another mask";
}

class ActivationOnDevice : public testing::TestWithParam<int64_t> {};

TEST_P(ActivationOnDevice, EqualsTheCpu) {
  torch::manual_seed(5);
  const int64_t k = GetParam();
  const Tensors all = {torch::randn({19, k}), torch::randn({19, k}), torch::randn({24, k}) / std::sqrt(k),
                       torch::randn({24})};
  for (const bool tanh : {false, true}) {
    expect_as_on_cpu([tanh](const Tensors& t) { return gelu_linear(t[0], t[1], t[2], {.tanh = tanh}); },
                     {all[0], all[2], all[3]});
  }
  expect_as_on_cpu([](const Tensors& t) { return swiglu(t[0], t[1]); }, {all[0], all[1]});
  expect_as_on_cpu([](const Tensors& t) { return swiglu_linear(t[0], t[1], t[2], t[3]); }, all);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ActivationOnDevice, testing::Values(1, 17, 512));

class CrossEntropyOnDevice : public testing::TestWithParam<int64_t> {};

TEST_P(CrossEntropyOnDevice, EqualsTheCpu) {
  torch::manual_seed(6);
  const int64_t classes = GetParam(), rows = 45;
  at::Tensor target = torch::randint(classes, {rows}, at::kLong);
  target[3] = -100;
  const auto labels = [&](const at::Tensor& like) { return target.to(like.device()); };
  const at::Tensor logits = torch::randn({rows, classes}) * 3;
  for (const double smoothing : {0.0, 0.1}) {
    expect_as_on_cpu(
        [&](const Tensors& t) { return softmax_cross_entropy(t[0], labels(t[0]), {.label_smoothing = smoothing}); },
        {logits});
  }
  const auto of_linear = [&](int64_t classes_together) {
    return [&, classes_together](const Tensors& t) {
      return linear_cross_entropy(t[0], t[1], t[2], labels(t[0]), {.chunk = 16, .vocabulary_chunk = classes_together});
    };
  };
  const Tensors linear = {torch::randn({rows, 32}), torch::randn({classes, 32}) / 6, torch::randn({classes})};
  expect_as_on_cpu(of_linear(0), linear);
  expect_as_on_cpu(of_linear((classes + 2) / 3), linear);
}

INSTANTIATE_TEST_SUITE_P(Classes, CrossEntropyOnDevice, testing::Values(2, 10, 1000, 50257));

}  // namespace bellows::nn
