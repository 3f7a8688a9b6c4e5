// Instance norm, PReLU and padding between convolutions: exact, and without copies between memory orders.
#include <gmock/gmock.h>

#include "bellows/compile.h"
#include "tests/compile/onednn_support.h"

namespace bellows::compile_detail::testing {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;
using ::testing::Not;

struct NetOptions {
  bool affine = true;
  bool one_slope = false;  ///< of PReLU for all channels
  int64_t samples = 3;
  bool running = false;  ///< running statistics, which instance norm usually has not
};

/// A block of a style transfer network.
struct StyleNet {
  explicit StyleNet(const NetOptions& options) : options_(options) {
    const auto norm = [&] {
      nn::InstanceNorm2d made(
          nn::InstanceNorm2dOptions(12).affine(options.affine).track_running_stats(options.running));
      if (options.affine) {
        nn::init::uniform_(made->weight, 0.5, 1.5);
        nn::init::normal_(made->bias);
      }
      return made;
    };
    net = nn::Sequential(nn::ReflectionPad2d(1), nn::Conv2d(nn::Conv2dOptions(3, 12, 3).bias(false)), norm(),
                         nn::ReLU(), nn::ReflectionPad2d(1), nn::Conv2d(nn::Conv2dOptions(12, 12, 3).bias(false)),
                         norm(), nn::PReLU(nn::PReLUOptions().num_parameters(options.one_slope ? 1 : 12)),
                         nn::Conv2d(nn::Conv2dOptions(12, 4, 3).padding(1)));
    x = torch::randn({options.samples, 3, 20, 24});
  }
  void to(at::ScalarType type) {
    net->to(type);
    x = x.to(type);
  }
  /// Loss, output, and all gradients and buffers.
  Tensors step() {
    net->zero_grad();
    const at::Tensor y = net->forward(x), loss = (y * y).mean() + y.sum() * 0.01;
    loss.backward();
    Tensors all = {loss.detach(), y.detach()};
    for (const at::Tensor& p : net->parameters()) all.push_back(p.grad());
    for (const at::Tensor& b : net->buffers()) all.push_back(b.clone());
    return all;
  }

  NetOptions options_;
  nn::Sequential net;
  at::Tensor x;
};

StyleNet made(const NetOptions& options, at::ScalarType type = at::kFloat) {
  torch::manual_seed(4);
  StyleNet net(options);
  net.to(type);
  return net;
}

/// Gradients are sums of hundreds of values whose sum is much smaller than they are, hence 256 last places.
/// Returns: what the compiled function says about itself
std::string expect_exact_step(const NetOptions& options, const CompileOptions& how = {.always = true}) {
  StyleNet plain = made(options), ours = made(options), exact = made(options, at::kDouble);
  auto step = compile([&] { return ours.step(); }, how);
  for (int call = 0; call < 4; ++call) {
    const Tensors got = step(), theirs = plain.step(), right = exact.step();
    for (size_t i = 0; i < got.size(); ++i)
      expect_as_exact(got[i], theirs[i], right[i].to(at::kDouble), c10::str("call ", call, ", tensor ", i), 256);
  }
  return step.explain().to_text();
}

}  // namespace

TEST(ImageNorms, InstanceNormIsExactAndStaysInOrder) {
  for (const bool affine : {true, false}) {
    for (const int64_t samples : {1, 3}) {
      SCOPED_TRACE(c10::str(affine, " ", samples));
      const std::string text = expect_exact_step({.affine = affine, .samples = samples});
      if (samples == 1) continue;  // is a batch norm
      EXPECT_THAT(text, HasSubstr("instance_norm"));
      EXPECT_THAT(text, HasSubstr("2 × to channels last")) << "of the input and of the gradient";
      EXPECT_THAT(text, Not(HasSubstr("batch norm"))) << text;
    }
  }
}

TEST(ImageNorms, InstanceNormWithRunningStatisticsStaysABatchNorm) {
  EXPECT_THAT(expect_exact_step({.running = true}), Not(HasSubstr("instance_norm")));
}

TEST(ImageNorms, PReluHasOneOrManySlopes) {
  for (const bool one_slope : {true, false}) {
    const std::string text = expect_exact_step({.one_slope = one_slope});
    EXPECT_THAT(text, HasSubstr("_prelu_kernel_backward"));
    EXPECT_THAT(text, Not(HasSubstr("aten::_prelu_kernel"))) << text;
  }
}

/// As in the U-Net of a diffusion model.
TEST(ImageNorms, GroupNormIsExactAndStaysInOrder) {
  for (const int64_t groups : {1, 4, 12}) {
    const auto network = [&](at::ScalarType type) {
      torch::manual_seed(5);
      nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 12, 3).padding(1)),
                         nn::GroupNorm(nn::GroupNormOptions(groups, 12)), nn::SiLU(),
                         nn::Conv2d(nn::Conv2dOptions(12, 4, 3).padding(1)));
      nn::init::uniform_(net[1]->as<nn::GroupNorm>()->weight, 0.5, 1.5);
      net->to(type);
      return net;
    };
    const at::Tensor x = torch::randn({3, 3, 20, 24});
    const auto step_of = [&](nn::Sequential net, at::ScalarType type) {
      return [net, in = x.to(type)]() mutable {
        net->zero_grad();
        const at::Tensor y = net->forward(in);
        (y * y).mean().backward();
        Tensors all = {y.detach()};
        for (const at::Tensor& p : net->parameters()) all.push_back(p.grad());
        return all;
      };
    };
    auto plain = step_of(network(at::kFloat), at::kFloat), exact = step_of(network(at::kDouble), at::kDouble);
    auto step = compile(step_of(network(at::kFloat), at::kFloat), {.always = true});
    for (int call = 0; call < 4; ++call) {
      const Tensors got = step(), theirs = plain(), right = exact();
      for (size_t i = 0; i < got.size(); ++i)
        expect_as_exact(got[i], theirs[i], right[i], c10::str("call ", call, ", tensor ", i), 256);
    }
    const std::string text = step.explain().to_text();
    EXPECT_THAT(text, HasSubstr("native_group_norm, silu)")) << "one kernel";
    EXPECT_THAT(text, Not(HasSubstr("aten::native_group_norm")));
    EXPECT_THAT(text, HasSubstr("2 × to channels last")) << text;
  }
}

/// The operator computes with the sizes in its arguments, even if the image has other sizes.
TEST(ImageNorms, GroupNormWithOtherSizesThanTheImage) {
  const at::Tensor x = torch::randn({2, 6, 5, 5}), weight = torch::rand({6}), bias = torch::randn({6});
  const auto run = [&](const at::Tensor& in) {
    return std::get<0>(at::native_group_norm(in, weight, bias, 1, 6, 50, 3, 1e-5));
  };
  const auto compiled = compile(run, {.always = true});
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(x), run(x), 1e-5, 1e-5));
}

/// One operand of the reduction is the image of a convolution, the other one the same image transposed.
TEST(ImageNorms, AReductionReadsAnImageInTwoOrders) {
  torch::manual_seed(6);
  const at::Tensor weight = torch::randn({8, 3, 3, 3});
  const auto run = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    const at::Tensor y = at::conv2d(x, weight, {}, 1, 1);
    return at::stack({at::mse_loss(y.transpose(2, 3), y), at::mse_loss(y, y.transpose(2, 3))});
  };
  const auto compiled = compile(run, {.always = true});
  const at::Tensor x = torch::randn({2, 3, 16, 16});
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(at::allclose(compiled(x), run(x), 1e-5, 1e-5)) << compiled(x) << run(x);
  }
}

TEST(ImageNorms, ExactModeKeepsTheBits) {
  StyleNet plain = made({}), ours = made({});
  auto step = compile([&] { return ours.step(); }, {.exact = true, .always = true});
  for (int call = 0; call < 3; ++call) {
    const Tensors got = step(), theirs = plain.step();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], theirs[i])) << call << ", " << i;
  }
  EXPECT_THAT(step.explain().to_text(), HasSubstr("instance norm"));
}

TEST(ImageNorms, OfLinesAndVolumes) {
  for (const at::Tensor& x : {torch::randn({4, 6, 50}), torch::randn({2, 5, 6, 7, 8})}) {
    const at::Tensor weight = torch::rand({x.size(1)}), bias = torch::randn({x.size(1)});
    const auto run = [&](const at::Tensor& in) {
      const at::Tensor leaf = in.detach().clone().requires_grad_();
      const at::Tensor y =
          at::instance_norm(leaf * 2, weight.to(in.dtype()), bias.to(in.dtype()), {}, {}, true, 0.1, 1e-5, false);
      y.pow(3).sum().backward();
      return Tensors{y.detach(), leaf.grad()};
    };
    auto compiled = compile(run, {.always = true});
    for (int call = 0; call < 3; ++call) {
      const Tensors got = compiled(x), plain = run(x), exact = run(x.to(at::kDouble));
      for (size_t i = 0; i < got.size(); ++i) expect_as_exact(got[i], plain[i], exact[i], c10::str(call, " ", i), 32);
    }
    EXPECT_THAT(compiled.explain().to_text(), HasSubstr("instance norm"));
  }
}

TEST(ImageNorms, RunUnderAutocast) {
  StyleNet plain = made({}), ours = made({}), exact = made({}, at::kDouble);
  auto step = compile([&] { return ours.step(); }, {.autocast = at::kBFloat16, .always = true});
  const Tensors right = exact.step();
  for (int call = 0; call < 3; ++call) {
    const Tensors got = step();
    EXPECT_NEAR(got[0].item<double>(), right[0].item<double>(), 3e-2 * std::abs(right[0].item<double>()));
    EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  }
}

}  // namespace bellows::compile_detail::testing
