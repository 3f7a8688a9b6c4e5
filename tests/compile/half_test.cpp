// Matmuls and convolutions of compiled functions in half, on processors whose fp16 kernels are slow.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/compile.h"
#include "bellows/tap/half_operators.h"

namespace bellows::compile_detail::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A convolution, a linear and their gradients.
struct HalfNet {
  at::Tensor kernel = torch::randn({8, 3, 3, 3}).mul_(0.2).requires_grad_();
  at::Tensor weight = torch::randn({10, 8 * 8 * 8}).mul_(0.05).requires_grad_();

  Tensors step(const at::Tensor& x) {
    const at::Tensor out = at::linear(at::conv2d(x, kernel, {}, 1, 1).relu().flatten(1), weight);
    auto gradients = torch::autograd::grad({out.square().sum()}, {kernel, weight});
    return {out.detach(), gradients[0], gradients[1]};
  }
};

class CompiledHalf : public ::testing::TestWithParam<bool> {
 protected:
  CompiledHalf() { tap::set_half_features(tap::HalfFeatures{.onednn = GetParam()}); }
  ~CompiledHalf() override { tap::set_half_features({}); }
};

TEST_P(CompiledHalf, ConvertsAndIsCloseToFp32) {
  torch::manual_seed(2);
  HalfNet net;
  const at::Tensor x = torch::randn({4, 3, 8, 8});
  const Tensors expected = net.step(x);
  const auto compiled =
      compile([&](const at::Tensor& in) { return net.step(in); }, {.autocast = at::kHalf, .always = true});
  for (int call = 0; call < 3; ++call) {
    const int64_t before = tap::FastHalfGuard::converted();
    const Tensors made = compiled(x);
    sync();
    // At least the backward pass of the convolution converts on every processor.
    EXPECT_GE(tap::FastHalfGuard::converted() - before, GetParam() ? 1 : 4) << call;
    for (size_t i = 0; i < made.size(); ++i)
      EXPECT_LE((made[i] - expected[i]).norm().item<double>(), 4e-3 * expected[i].norm().item<double>()) << i;
  }
  EXPECT_FALSE(tap::FastHalfGuard::active());
}

TEST_P(CompiledHalf, OverflowIsInfinite) {
  const at::Tensor a = torch::full({8, 64}, 64.), b = torch::full({64, 8}, 16.);
  const auto compiled =
      compile([&](const at::Tensor& in) { return in.mm(b).relu(); }, {.autocast = at::kHalf, .always = true});
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(compiled(a).isinf().all().item<bool>()) << call;  // 65536
    EXPECT_TRUE(compiled(a * 0.5).eq(32768).all().item<bool>()) << call;
  }
}

INSTANTIATE_TEST_SUITE_P(Features, CompiledHalf, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "Onednn" : "Converted"); });

TEST(CompiledHalfExact, IsBitIdenticalToEagerCode) {
  tap::set_half_features(tap::HalfFeatures{.onednn = false});
  torch::manual_seed(2);
  const at::Tensor a = torch::randn({32, 48}).to(at::kHalf), b = torch::randn({48, 16}).to(at::kHalf);
  const auto compiled = compile([&](const at::Tensor& in) { return in.mm(b).relu(); }, {.exact = true, .always = true});
  const int64_t before = tap::FastHalfGuard::converted();
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(compiled(a).equal(a.mm(b).relu())) << call;
  EXPECT_EQ(tap::FastHalfGuard::converted(), before);
  tap::set_half_features({});
}

}  // namespace
}  // namespace bellows::compile_detail::testing
