#include "bellows/amp/grad_scaler.h"
#include "bellows/metrics/classification.h"
#include "bellows/nn/activation.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/dropout_norm.h"
#include "bellows/nn/modules.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/step_in_backward.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/compress.h"
#include "bellows/recompute/offload.h"
#include "tests/graph/training.h"

namespace bellows::graph::testing {
namespace {

using optim::Impl;
using optim::State;

template <class Optimizer, class Options>
void expect_steps_alike(const Options& options, at::ScalarType type = at::kFloat) {
  expect_trained_alike([&] {
    auto net = mlp();
    net->to(type);
    return training<Optimizer>(net.ptr(), classify(net, torch::randn({8, 16}, type)), options);
  });
}

TEST(OwnKernels, FusedOptimizers) {
  expect_steps_alike<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .impl = Impl::fused});
  expect_steps_alike<optim::Adam>(optim::AdamOptions{.amsgrad = true, .impl = Impl::fused});
  expect_steps_alike<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .impl = Impl::fused});
  expect_steps_alike<optim::RMSprop>(optim::RMSpropOptions{.momentum = 0.5, .impl = Impl::fused});
  expect_steps_alike<optim::Adagrad>(optim::AdagradOptions{.impl = Impl::fused});
  expect_steps_alike<optim::Lion>(optim::LionOptions{.impl = Impl::fused});
  expect_steps_alike<optim::Adafactor>(optim::AdafactorOptions{.impl = Impl::fused});
}

TEST(OwnKernels, StateInFewBitsAndMasterWeights) {
  for (const State state : {State::int8, State::int4})
    expect_steps_alike<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .state_dtype = state, .min_8bit_size = 0});
  expect_steps_alike<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .master_weights = true}, at::kBFloat16);
  expect_steps_alike<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .stochastic_rounding = true}, at::kBFloat16);
}

struct OwnLayers : nn::Module {
  explicit OwnLayers(bool whole_loss) : chunks(whole_loss) {
    in = register_module("in", nn::Linear(16, 32));
    gate = register_module("gate", nn::Linear(32, 32));
    middle = register_module("middle", nn::Linear(32, 32));
    out = register_module("out", nn::Linear(32, 10));
    norm = register_module("norm", bellows::nn::LayerNorm(32));
    rms = register_module("rms", bellows::nn::RMSNorm(32));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor a = norm(in(x));
    const at::Tensor b = bellows::nn::gelu_linear(a, middle->weight, middle->bias);
    const at::Tensor c = bellows::nn::dropout_add_norm(b, a, norm->weight, norm->bias, {.p = 0.25});
    const at::Tensor d = rms(bellows::nn::swiglu_linear(gate(c), c, middle->weight, middle->bias));
    if (chunks) return bellows::nn::linear_cross_entropy(d, out->weight, out->bias, y, {.chunk = 3});
    return bellows::nn::softmax_cross_entropy(out(bellows::nn::swiglu(d, c)), y, {.label_smoothing = 0.1});
  }
  bool chunks;
  nn::Linear in{nullptr}, gate{nullptr}, middle{nullptr}, out{nullptr};
  bellows::nn::LayerNorm norm{nullptr};
  bellows::nn::RMSNorm rms{nullptr};
};

Program own_layers(bool chunks) {
  auto net = std::make_shared<OwnLayers>(chunks);
  const at::Tensor x = torch::randn({8, 16}), y = torch::randint(0, 10, {8});
  return training<optim::AdamW>(
      net, [=](int call) { return net->loss(x * (1 + 0.1 * call), y); }, optim::AdamWOptions{.lr = 1e-2});
}

TEST(OwnKernels, LayersAndLosses) {
  for (const bool chunks : {false, true}) expect_trained_alike([&] { return own_layers(chunks); });
}

TEST(OwnKernels, LayersAreDeferredAsAnyOperatorIs) {
  for (const bool chunks : {false, true}) {
    const Explanation said = expect_same([&] { return own_layers(chunks); });
    for (const auto& cause : said.barrier_causes)
      EXPECT_EQ(cause.op, "aten::_local_scalar_dense") << "the labels' range";
    EXPECT_LE(said.mismatches, 1) << said.to_text();  // the first step makes state
    EXPECT_GE(said.followed_calls, 8) << said.to_text();
  }
}

/// Nothing but the making of state, in the first step, differs from call to call, and nothing runs before the end of one.
void expect_one_piece(const std::function<Program()>& make) {
  const Explanation said = expect_same(make);
  EXPECT_EQ(said.barriers, 0) << said.to_text();
  EXPECT_LE(said.mismatches, 1) << said.to_text();
  EXPECT_GE(said.followed_calls, 8) << said.to_text();
}

template <class Optimizer, class Options>
void expect_clipped_step_in_one_piece(const Options& options, double norm_type) {
  expect_one_piece([&] {
    auto net = nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 10));
    const auto clip = [=](at::Tensor&) { optim::clip_grad_norm_(net->parameters(), 0.1, {.norm_type = norm_type}); };
    return training<Optimizer>(net.ptr(), classify(net, torch::randn({8, 16})), options, clip);
  });
}

TEST(OwnKernels, StepsAndClippingAreDeferredAsAnyOperatorIs) {
  expect_clipped_step_in_one_piece<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9}, 2);
  expect_clipped_step_in_one_piece<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2}, 1);
  expect_clipped_step_in_one_piece<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .state_dtype = State::int8},
                                                 std::numeric_limits<double>::infinity());
  expect_clipped_step_in_one_piece<optim::RMSprop>(optim::RMSpropOptions{.momentum = 0.5, .centered = true}, 2);
  expect_clipped_step_in_one_piece<optim::Adagrad>(optim::AdagradOptions{}, 2);
  expect_clipped_step_in_one_piece<optim::Lion>(optim::LionOptions{}, 2);
  expect_clipped_step_in_one_piece<optim::Adafactor>(optim::AdafactorOptions{}, 2);
  expect_clipped_step_in_one_piece<optim::Adafactor>(optim::AdafactorOptions{.beta1 = 0.9, .weight_decay = 0.1}, 2);
}

/// A step whose forward runs under a guard.
template <class Guard>
Program guarded(const std::function<Guard()>& guard, bool recomputes = false) {
  auto net = mlp();
  const at::Tensor x = torch::randn({64, 16}), y = torch::randint(0, 10, {64});
  return training<optim::AdamW>(
      net.ptr(),
      [=](int call) {
        auto all = [net](const at::Tensor& input) mutable { return net->forward(input); };
        const auto active = guard();
        const at::Tensor input = x * (1 + 0.1 * call);
        return nn::functional::cross_entropy(recomputes ? recompute::checkpoint(all, input) : all(input), y);
      },
      optim::AdamWOptions{.lr = 1e-2});
}

TEST(OwnKernels, CompressedActivations) {
  using recompute::ActivationBits;
  for (const auto bits : {ActivationBits::bf16, ActivationBits::int8, ActivationBits::int4}) {
    for (const bool recomputes : {false, true}) {
      const auto guard = [&] { return recompute::CompressGuard({.bits = bits, .min_size = 1, .seed = 3}); };
      expect_trained_alike([&] { return guarded<recompute::CompressGuard>(guard, recomputes); });
    }
  }
}

TEST(OwnKernels, ActivationsAndStateInFiles) {
  const auto guard = [] { return recompute::OffloadGuard({.min_bytes = 1}); };
  expect_same([&] { return guarded<recompute::OffloadGuard>(guard); });
  expect_same([] {
    auto net = mlp();
    auto optimizer = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-2});
    std::shared_ptr stepping = optim::step_in_backward(*optimizer, {.offload_state = true});
    const auto loss_of = classify(net, torch::randn({8, 16}));
    return Program{[=](int call) -> Tensors {
                     (void)optimizer, (void)stepping;
                     const at::Tensor loss = loss_of(call);
                     loss.backward();
                     return {loss};
                   },
                   [=] { return state_of(*net); }};
  });
}

/// Steps of a GradScaler; every fourth loss is infinite.
template <class Optimizer, class Options>
Program scaled_steps(const Options& options) {
  auto net = mlp();
  auto optimizer = std::make_shared<Optimizer>(net->parameters(), options);
  auto scaler = std::make_shared<amp::GradScaler>(amp::GradScalerOptions{.init_scale = 64, .growth_interval = 2});
  const auto loss_of = classify(net, torch::randn({8, 16}));
  return {[=](int call) -> Tensors {
            optimizer->zero_grad();
            const at::Tensor loss = loss_of(call) * (call % 4 == 3 ? std::numeric_limits<float>::infinity() : 1.0F);
            scaler->scale(loss).backward();
            scaler->step(*optimizer);
            scaler->update();
            return {loss};
          },
          [=] {
            Tensors all = state_of(*net);
            all.push_back(torch::tensor(scaler->get_scale()));
            return all;
          }};
}

TEST(OwnKernels, GradScaler) {
  expect_same([] { return scaled_steps<SGD>(SGDOptions(0.05)); });
  expect_same([] { return scaled_steps<optim::AdamW>(optim::AdamWOptions{.impl = Impl::loop}); });
}

TEST(OwnKernels, FusedStepsAreSkippedWithoutAWordToTheHost) {
  expect_one_piece([] { return scaled_steps<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2}); });
  expect_one_piece([] { return scaled_steps<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9}); });
  expect_one_piece([] { return scaled_steps<optim::Adafactor>(optim::AdafactorOptions{.warmup_init = true}); });
}

/// What is told to the optimizer is a tensor, too; every fourth step is left out.
TEST(OwnKernels, ClipAndStepIsDeferredAsAnyOperatorIs) {
  expect_one_piece([] {
    auto net = nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 10));
    auto optimizer = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-2});
    const auto loss_of = classify(net, torch::randn({8, 16}));
    const at::Tensor scale = torch::tensor(8.0F);
    return Program{
        [=](int call) -> Tensors {
          optimizer->zero_grad();
          const at::Tensor loss = loss_of(call) * (call % 4 == 3 ? std::nan("") : 1.0);
          (loss * scale).backward();
          return {loss, optim::clip_and_step(*optimizer, 0.05, {.grad_scale = scale, .skip_nonfinite = true})};
        },
        [=] { return state_of(*net); }};
  });
}

/// Steps that were skipped while deferred are none of those that a plain step, or a file, counts on from.
TEST(OwnKernels, SkippedStepsAreCountedWhenSomebodyAsks) {
  const auto make = [] { return scaled_steps<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2}); };
  const auto course = [&](Region* region) {
    torch::manual_seed(5);
    const Program program = make();
    Tensors all;
    for (int call = 0; call < 12; ++call) {
      const auto body = [&] { all = program.body(call); };
      region&& call % 6 != 5 ? region->run(body) : body();
    }
    for (const at::Tensor& tensor : program.state()) all.push_back(tensor);
    return all;
  };
  Region region;
  EXPECT_EQ(first_difference(course(nullptr), course(&region)), -1) << region.explain().to_text();
  EXPECT_GE(region.explain().followed_calls, 6) << region.explain().to_text();
}

TEST(OwnKernels, ClippingAveragingAndMetrics) {
  const Explanation said = expect_same([] {
    auto net = mlp();
    const Model model = Model::of(net);
    auto optimizer = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-2});
    auto average = std::make_shared<optim::AveragedModel>(
        model, optim::AveragingOptions{.weight = optim::ema_weight(0.9, /*warmup=*/true)});
    auto accuracy = std::make_shared<metrics::Accuracy>(metrics::ClassificationOptions{.num_classes = 10});
    const at::Tensor x = torch::randn({8, 16}), y = torch::randint(0, 10, {8});
    return Program{[=](int call) -> Tensors {
                     optimizer->zero_grad();
                     const at::Tensor scores = model.forward(x * (1 + 0.1 * call));
                     const at::Tensor loss = nn::functional::cross_entropy(scores, y);
                     loss.backward();
                     const at::Tensor norm = optim::clip_grad_norm_(net->parameters(), 0.1);
                     const at::Tensor again = optim::clip_and_step(*optimizer, 0.05);
                     average->update_parameters();
                     accuracy->update(scores, y);
                     return {loss, norm, again};
                   },
                   [=] {
                     Tensors all = state_of(*net);
                     for (const auto& [name, tensor] : average->averaged()) all.push_back(tensor);
                     all.push_back(accuracy->compute());
                     return all;
                   }};
  });
  EXPECT_GE(said.followed_calls, 6) << said.to_text();
}

}  // namespace
}  // namespace bellows::graph::testing
