#include "bellows/optim/gradient_accumulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/step_in_backward.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using testing::HasSubstr;

/// A convolution in channels-last, a layer that is used twice, a frozen weight.
struct SumsNet : torch::nn::Module {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 8, 3));
  torch::nn::Linear twice = register_module("twice", torch::nn::Linear(8, 8));
  at::Tensor frozen = register_parameter("frozen", torch::ones({8}), /*requires_grad=*/false);

  explicit SumsNet(at::ScalarType dtype) {
    to(dtype);
    conv->weight.set_data(conv->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor loss(int micro) {
    torch::manual_seed(static_cast<uint64_t>(7 + micro));
    const at::Tensor x = torch::randn({4, 3, 6, 6}).to(frozen.scalar_type());
    const at::Tensor h = conv(x).mean(at::IntArrayRef{2, 3}).tanh();
    return (twice(twice(h).tanh()) * frozen).to(at::kFloat).square().mean();
  }
  std::vector<at::Tensor> trained() { return {conv->weight, conv->bias, twice->weight, twice->bias}; }
};

std::shared_ptr<SumsNet> sums_net(at::ScalarType dtype) {
  torch::manual_seed(5);
  return std::make_shared<SumsNet>(dtype);
}

/// The sums by hand: each pass's gradient alone, added in `dtype`.
std::vector<at::Tensor> sums_by_hand(SumsNet& net, int first, int last, at::ScalarType dtype) {
  std::vector<at::Tensor> sums(net.trained().size());
  for (int micro = first; micro < last; ++micro) {
    net.zero_grad();
    net.loss(micro).backward();
    for (size_t i = 0; i < sums.size(); ++i) {
      const at::Tensor gradient = net.trained()[i].grad();
      sums[i] = sums[i].defined() ? sums[i].to(at::kFloat).add(gradient.to(at::kFloat)).to(dtype) : gradient.to(dtype);
    }
  }
  net.zero_grad();
  return sums;
}

}  // namespace

// Not only the sums: with them the norm, the clipped gradients and the weights behind four steps.
TEST(GradientAccumulator, SumsAndStepsAreThoseOfSumsByHand) {
  const auto check = [](at::ScalarType weights, at::ScalarType sums_type, auto make) {
    const auto by_hand = sums_net(weights), net = sums_net(weights);
    const auto a = make(by_hand->trained()), b = make(net->trained());
    const GradientAccumulator accumulator(net->parameters(), {.dtype = sums_type});
    for (int step = 0; step < 4; ++step) {
      const auto sums = sums_by_hand(*by_hand, 5 * step, 5 * step + 5, sums_type);
      for (int micro = 5 * step; micro < 5 * step + 5; ++micro) net->loss(micro).backward();
      for (size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor& got = net->trained()[i].grad();
        ASSERT_EQ(got.scalar_type(), sums_type);
        EXPECT_EQ(got.strides(), net->trained()[i].strides());
        EXPECT_TRUE(torch::equal(got, sums[i])) << "sum " << i << ", step " << step;
        by_hand->trained()[i].mutable_grad() = sums[i];
      }
      EXPECT_TRUE(torch::equal(clip_grad_norm_(by_hand->trained(), 0.01), clip_grad_norm_(net->trained(), 0.01)));
      a->step(), b->step();
      b->zero_grad();
      for (size_t i = 0; i < sums.size(); ++i)
        EXPECT_TRUE(torch::equal(by_hand->trained()[i], net->trained()[i])) << "weight " << i << ", step " << step;
    }
    EXPECT_FALSE(net->frozen.grad().defined());
  };
  const auto adamw = [](Impl impl, bool masters) {
    return [=](const std::vector<at::Tensor>& p) {
      return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01, .master_weights = masters, .impl = impl});
    };
  };
  check(at::kBFloat16, at::kFloat, adamw(Impl::fused, true));
  check(at::kBFloat16, at::kFloat, adamw(Impl::foreach, false));
  check(at::kFloat, at::kBFloat16, adamw(Impl::fused, false));
  check(at::kFloat, at::kBFloat16, [](const std::vector<at::Tensor>& p) {
    return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.01));
  });
}

TEST(GradientAccumulator, KeepsWhatTheWeightsTypeLoses) {
  const at::Tensor plain = torch::ones({3}, at::kBFloat16).requires_grad_(true), summed = plain.detach().clone();
  summed.requires_grad_(true);
  {
    const GradientAccumulator accumulator({summed});
    for (int micro = 0; micro < 600; ++micro) plain.sum().backward(), summed.sum().backward();
    EXPECT_EQ(plain.grad()[0].item<double>(), 256);  // 256 + 1 rounds to 256
    EXPECT_EQ(summed.grad()[0].item<double>(), 600);
  }
  summed.sum().backward();  // what is there stays, and goes on
  EXPECT_EQ(summed.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(summed.grad()[0].item<double>(), 601);
  summed.mutable_grad().reset();
  summed.sum().backward();
  EXPECT_EQ(summed.grad().scalar_type(), at::kBFloat16);
}

// The bound of the doc comment, and that it is not far off.
TEST(GradientAccumulator, InBf16IsOffByALittle) {
  const auto net = sums_net(at::kFloat);
  const auto exact = sums_by_hand(*net, 0, 32, at::kFloat);
  const GradientAccumulator accumulator(net->parameters(), {.dtype = at::kBFloat16});
  for (int micro = 0; micro < 32; ++micro) net->loss(micro).backward();
  for (size_t i = 0; i < exact.size(); ++i) {
    const at::Tensor error = (net->trained()[i].grad().to(at::kFloat) - exact[i]).abs();
    const double largest = exact[i].abs().max().item<double>();
    EXPECT_LE(error.max().item<double>(), 32. / 256 * largest) << i;
    EXPECT_GT(error.max().item<double>(), 0) << i;
  }
}

TEST(GradientAccumulator, GoesOnWithGradientsThatAreThereAndUnscales) {
  const auto net = sums_net(at::kHalf);
  amp::GradScaler scaler({.init_scale = 256});
  SGD sgd(net->trained(), {.lr = 0.1, .master_weights = true});
  const auto expected = sums_by_hand(*net, 0, 2, at::kFloat);
  scaler.scale(net->loss(0)).backward();
  const GradientAccumulator accumulator(net->trained());
  EXPECT_EQ(net->conv->weight.grad().scalar_type(), at::kFloat);
  scaler.scale(net->loss(1)).backward();
  scaler.unscale_(sgd);  // fp16 gradients would be refused
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(net->trained()[i].grad(), expected[i], 1e-2, 1e-4)) << i;
  const at::Tensor before = net->twice->weight.detach().clone();
  scaler.step(sgd);
  scaler.update();
  EXPECT_FALSE(torch::equal(before, net->twice->weight));
}

TEST(GradientAccumulator, OfTheWeightsOwnTypeChangesNothing) {
  const auto plain = sums_net(at::kFloat), net = sums_net(at::kFloat);
  const GradientAccumulator accumulator(net->trained(), {.dtype = at::kFloat});
  SGD sgd(net->trained(), {.lr = 0.1});
  EXPECT_NO_THROW(step_in_backward(sgd).reset());  // no hook in the way
  for (int micro = 0; micro < 3; ++micro) plain->loss(micro).backward(), net->loss(micro).backward();
  for (size_t i = 0; i < net->trained().size(); ++i)
    EXPECT_TRUE(torch::equal(plain->trained()[i].grad(), net->trained()[i].grad()));
}

TEST(GradientAccumulator, RefusesInWords) {
  const auto message = [](const std::vector<at::Tensor>& p, at::ScalarType dtype = at::kFloat) {
    return message_of([&] { const GradientAccumulator accumulator(p, {.dtype = dtype}); });
  };
  const at::Tensor p = torch::ones({4, 2}, at::kBFloat16).requires_grad_(true);
  EXPECT_THAT(message({p}, at::kLong), HasSubstr("expected float32, float64, bfloat16 or float16, got Long"));
  EXPECT_THAT(message({p}, at::kFloat8_e4m3fn), HasSubstr("expected float32"));
  EXPECT_THAT(message({}), HasSubstr("got none"));
  EXPECT_THAT(message({p, at::Tensor()}),
              HasSubstr("parameter 1 to have a real floating-point dtype, got an undefined"));
  EXPECT_THAT(message({torch::ones({2}, at::kComplexFloat)}), HasSubstr("got ComplexFloat"));
  const GradientAccumulator accumulator({p});
  EXPECT_THAT(message({p}, at::kDouble), HasSubstr("hook"));
  const at::Tensor rows = at::embedding(p, torch::arange(2), -1, false, /*sparse=*/true);
  EXPECT_THAT(message_of([&] { rows.sum().backward(); }), HasSubstr("sparse gradient"));
}

}  // namespace bellows::optim
