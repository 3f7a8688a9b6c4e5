// Compiled functions store the masks of dropouts as bytes, with the values and generator states of eager code.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "bellows/compile.h"
#include "bellows/tap/dropout.h"

namespace bellows::compile_detail::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Two dropouts, other random operators in between, and the gradients.
Tensors noisy_step(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor hidden = torch::dropout(x.mul(weight).relu(), 0.1, true);
  const at::Tensor noise = torch::rand_like(hidden);
  const at::Tensor out = torch::dropout((hidden + noise).mul(weight), 0.5, true);
  auto gradients = torch::autograd::grad({out.sum()}, {weight});
  return {hidden.detach(), out.detach(), gradients[0], torch::randn({5})};
}

/// Sizes of x and a number of threads.
struct DropoutCase {
  std::vector<int64_t> sizes;
  int threads;
};

class CompiledDropout : public ::testing::TestWithParam<DropoutCase> {};

TEST_P(CompiledDropout, ValuesAndGeneratorEqualEagerCode) {
  const int threads = at::get_num_threads();
  at::set_num_threads(GetParam().threads);
  torch::manual_seed(7);
  const at::Tensor x = torch::randn(GetParam().sizes), weight = torch::randn(GetParam().sizes).requires_grad_();
  const auto compiled = compile(noisy_step, {.always = true});
  for (int call = 0; call < 4; ++call) {
    torch::manual_seed(call);
    const Tensors expected = noisy_step(x, weight);
    const at::Tensor next = torch::rand({3});
    torch::manual_seed(call);
    const Tensors made = compiled(x, weight);
    EXPECT_TRUE(torch::rand({3}).equal(next)) << call;
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_TRUE(torch::allclose(made[i], expected[i], 1e-6, 0)) << call << ", tensor " << i;
      EXPECT_TRUE((made[i] == 0).equal(expected[i] == 0)) << call << ", tensor " << i;
    }
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CompiledDropout,
                         ::testing::Values(DropoutCase{{3}, 1}, DropoutCase{{127}, 2}, DropoutCase{{128, 9}, 1},
                                           DropoutCase{{77, 1031}, 1}, DropoutCase{{77, 1031}, 2},
                                           DropoutCase{{4, 16, 33, 3}, 2}),
                         [](const auto& test) { return "Case" + std::to_string(test.index); });

TEST(CompiledDropoutMasks, AreStoredAsBytesAndReadInBothDirections) {
  const at::Tensor x = torch::randn({256, 256}), weight = torch::randn({256, 256}).requires_grad_();
  const auto compiled = compile(noisy_step, {.always = true});
  for (int call = 0; call < 3; ++call) compiled(x, weight);
  const std::string text = compiled.explain().to_text();
  EXPECT_NE(text.find("masks "), std::string::npos) << text;
  int masks = 0, wide = 0;
  for (const auto& graph : compiled.recordings()) {
    const std::string operators = graph.to_text();
    for (size_t at = 0; (at = operators.find("bernoulli_", at)) != std::string::npos; ++at) {
      const size_t line = operators.rfind('\n', at) + 1;
      ++(operators.substr(operators.rfind("empty_like", line) - 40, 40).find("bool") != std::string::npos ? masks
                                                                                                          : wide);
    }
  }
  EXPECT_GE(masks, 2);
  EXPECT_EQ(wide, 0);
}

TEST(ByteDropout, EqualsLibtorchForAllLayoutsAndTypes) {
  const tap::ByteDropoutGuard off(false);
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({6, 8, 5, 7});
  for (at::Tensor input :
       {x, x.to(at::kBFloat16), x.to(at::kHalf), x.to(at::kDouble), x.contiguous(at::MemoryFormat::ChannelsLast),
        x.permute({2, 0, 3, 1}), x.slice(2, 0, 5, 2), x.new_empty({0}), x[0][0][0][0].expand({40})}) {
    for (const double p : {0., 0.1, 0.5, 1.}) {
      const auto draw = [&](bool bytes, Tensors& made) {
        const tap::ByteDropoutGuard guard(bytes);
        torch::manual_seed(11);
        const at::Tensor leaf = input.detach().requires_grad_();
        made.push_back(torch::dropout(leaf, p, true));
        if (leaf.numel() > 0) made.push_back(torch::autograd::grad({made[0].sum()}, {leaf})[0]);
        made.push_back(torch::rand({4}));
      };
      Tensors theirs, ours;
      draw(false, theirs);
      draw(true, ours);
      ASSERT_EQ(ours.size(), theirs.size());
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(ours[i].equal(theirs[i])) << input.sizes() << input.dtype() << p << ", tensor " << i;
        EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << input.sizes() << input.dtype() << p;
      }
    }
  }
  const tap::ByteDropoutGuard guard;
  EXPECT_THROW(torch::dropout(x, 1.5, true), c10::Error);
  EXPECT_TRUE(torch::dropout(x, 0.5, false).equal(x));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
