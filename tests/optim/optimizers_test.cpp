#include "bellows/optim/optimizers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/error.h"
#include "bellows/optim/state/state.h"

namespace bellows::optim {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Awkward parameters: scalar, odd sizes, channels-last, larger than a cache list, one that never has a gradient,
/// float64.
Tensors make_parameters() {
  at::manual_seed(7);
  Tensors parameters = {torch::randn({}),
                        torch::randn({17}),
                        torch::randn({15, 3}),
                        torch::randn({8, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast),
                        torch::randn({300, 401}),
                        torch::randn({5}),
                        torch::randn({9}, at::kDouble)};
  for (auto& p : parameters) p.requires_grad_(true);
  return parameters;
}

/// Gradients of step `step`; the fifth parameter never gets one, the second only from step 3 on.
void fill_gradients(Tensors& parameters, int step) {
  at::manual_seed(100 + static_cast<uint64_t>(step));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = torch::randn_like(parameters[i]);
    if (i != 5 && (i != 1 || step >= 3)) parameters[i].mutable_grad() = gradient;
  }
}

void expect_same_bits(const Tensors& ours, const Tensors& reference, int step) {
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_TRUE(torch::equal(ours[i], reference[i])) << "parameter " << i << " differs after step " << step;
    ASSERT_EQ(ours[i].strides(), reference[i].strides());
  }
}

/// Twelve steps of both from the same start, with the learning rate changed on the way.
void expect_same_trajectory(torch::optim::Optimizer& ours, Tensors& our_parameters, torch::optim::Optimizer& reference,
                            Tensors& reference_parameters) {
  for (int step = 0; step < 12; ++step) {
    fill_gradients(our_parameters, step);
    fill_gradients(reference_parameters, step);
    if (step == 6) {
      set_lr(ours, 0.03);
      set_lr(reference, 0.03);
    }
    ours.step();
    reference.step();
    expect_same_bits(our_parameters, reference_parameters, step);
  }
}

}  // namespace

struct SgdCase {
  double momentum, dampening, weight_decay;
  bool nesterov;
};

class SgdTest : public testing::TestWithParam<std::tuple<SgdCase, Impl>> {};

TEST_P(SgdTest, EqualsLibtorchBitForBit) {
  const auto& [c, impl] = GetParam();
  Tensors ours = make_parameters(), reference = make_parameters();
  SGD sgd(ours, {.lr = 0.1,
                 .momentum = c.momentum,
                 .dampening = c.dampening,
                 .weight_decay = c.weight_decay,
                 .nesterov = c.nesterov,
                 .impl = impl});
  torch::optim::SGD torch_sgd(reference, torch::optim::SGDOptions(0.1)
                                             .momentum(c.momentum)
                                             .dampening(c.dampening)
                                             .weight_decay(c.weight_decay)
                                             .nesterov(c.nesterov));
  expect_same_trajectory(sgd, ours, torch_sgd, reference);
}

INSTANTIATE_TEST_SUITE_P(Options, SgdTest,
                         testing::Combine(testing::Values(SgdCase{0, 0, 0, false}, SgdCase{0, 0, 0.01, false},
                                                          SgdCase{0.9, 0, 0, false}, SgdCase{0.9, 0.3, 0.01, false},
                                                          SgdCase{0.9, 0, 0.01, true}),
                                          testing::Values(Impl::loop, Impl::foreach)));

class AdamWTest : public testing::TestWithParam<std::tuple<double, bool, Impl>> {};

TEST_P(AdamWTest, EqualsLibtorchBitForBit) {
  const auto [weight_decay, amsgrad, impl] = GetParam();
  Tensors ours = make_parameters(), reference = make_parameters();
  AdamW adamw(
      ours, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .weight_decay = weight_decay, .amsgrad = amsgrad, .impl = impl});
  torch::optim::AdamW torch_adamw(
      reference, torch::optim::AdamWOptions(0.01).betas({0.8, 0.99}).weight_decay(weight_decay).amsgrad(amsgrad));
  expect_same_trajectory(adamw, ours, torch_adamw, reference);
}

INSTANTIATE_TEST_SUITE_P(Options, AdamWTest,
                         testing::Combine(testing::Values(0.0, 0.1), testing::Bool(),
                                          testing::Values(Impl::loop, Impl::foreach)));

TEST(RmspropTest, EqualsLibtorchBitForBit) {
  for (const Impl impl : {Impl::loop, Impl::foreach}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool centered : {false, true}) {
        Tensors ours = make_parameters(), reference = make_parameters();
        RMSprop rmsprop(
            ours,
            {.lr = 0.01, .alpha = 0.9, .weight_decay = 0.1, .momentum = momentum, .centered = centered, .impl = impl});
        torch::optim::RMSprop torch_rmsprop(
            reference,
            torch::optim::RMSpropOptions(0.01).alpha(0.9).weight_decay(0.1).momentum(momentum).centered(centered));
        expect_same_trajectory(rmsprop, ours, torch_rmsprop, reference);
      }
    }
  }
}

TEST(AdamTest, EqualsLibtorchBitForBit) {
  for (const Impl impl : {Impl::loop, Impl::foreach}) {
    for (const bool amsgrad : {false, true}) {
      Tensors ours = make_parameters(), reference = make_parameters();
      Adam adam(ours, {.lr = 0.01, .weight_decay = 0.1, .amsgrad = amsgrad, .impl = impl});
      torch::optim::Adam torch_adam(reference, torch::optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(amsgrad));
      expect_same_trajectory(adam, ours, torch_adam, reference);
    }
  }
}

TEST(AdagradTest, EqualsLibtorchBitForBit) {
  for (const Impl impl : {Impl::loop, Impl::foreach}) {
    Tensors ours = make_parameters(), reference = make_parameters();
    Adagrad adagrad(ours,
                    {.lr = 0.1, .lr_decay = 0.01, .weight_decay = 0.1, .initial_accumulator_value = 0.3, .impl = impl});
    torch::optim::Adagrad torch_adagrad(
        reference, torch::optim::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.1).initial_accumulator_value(0.3));
    expect_same_trajectory(adagrad, ours, torch_adagrad, reference);
  }
}

TEST(Optimizers, ImplementationCanChangeBetweenSteps) {
  Tensors ours = make_parameters(), reference = make_parameters();
  AdamW adamw(ours, {.lr = 0.01});
  torch::optim::AdamW torch_adamw(reference, torch::optim::AdamWOptions(0.01));
  EXPECT_EQ(adamw.impl(), Impl::automatic);
  for (int step = 0; step < 6; ++step) {
    fill_gradients(ours, step);
    fill_gradients(reference, step);
    adamw.set_impl(step % 2 ? Impl::loop : Impl::foreach);
    adamw.step();
    torch_adamw.step();
    expect_same_bits(ours, reference, step);
  }
}

TEST(Optimizers, ParameterGroupsKeepTheirOwnOptions) {
  Tensors ours = make_parameters(), reference = make_parameters();
  const auto groups = [](const Tensors& p) {
    LibtorchOptimizer::ParamGroups result;
    result.emplace_back(Tensors{p[1], p[2]},
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.5).momentum(0.9)));
    result.emplace_back(Tensors{p[3], p[4]});
    return result;
  };
  SGD sgd(groups(ours), {.lr = 0.1, .weight_decay = 0.01, .impl = Impl::foreach});
  torch::optim::SGD torch_sgd(groups(reference), torch::optim::SGDOptions(0.1).weight_decay(0.01));
  for (int step = 0; step < 5; ++step) {
    fill_gradients(ours, step);
    fill_gradients(reference, step);
    sgd.step();
    torch_sgd.step();
    expect_same_bits(ours, reference, step);
  }
}

TEST(Optimizers, SparseGradientsGoThroughTheLoop) {
  const auto train = [](auto make) {
    at::manual_seed(3);
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    auto optimizer = make(embedding->parameters());
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      embedding->forward(torch::tensor({step, 5})).square().sum().backward();
      optimizer->step();
    }
    return embedding->weight.detach().clone();
  };
  const at::Tensor ours = train([](Tensors p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1}); });
  const at::Tensor reference =
      train([](Tensors p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1)); });
  EXPECT_TRUE(torch::equal(ours, reference));
}

TEST(Optimizers, ClosureRunsWithGradientsAndItsLossIsReturned) {
  at::Tensor p = torch::ones({3}, torch::requires_grad());
  SGD sgd({p}, {.lr = 0.25});
  const c10::NoGradGuard outside;
  const at::Tensor loss = sgd.step([&] {
    sgd.zero_grad();
    at::Tensor value = (p * p).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_TRUE(torch::equal(p, torch::full({3}, 0.5)));
}

TEST(Optimizers, StateIsLibtorchsOwnInArchives) {
  Tensors ours = make_parameters(), reference = make_parameters();
  AdamW adamw(ours, {.lr = 0.01, .impl = Impl::foreach});
  fill_gradients(ours, 3);
  fill_gradients(reference, 3);
  adamw.step();
  torch::optim::AdamW before(reference, torch::optim::AdamWOptions(0.5));
  before.step();  // another learning rate: the archive has to bring the right one
  std::stringstream file;
  torch::save(adamw, file);
  torch::load(before, file);
  for (size_t i = 0; i < ours.size(); ++i) reference[i].detach().copy_(ours[i]);
  for (int step = 4; step < 7; ++step) {
    fill_gradients(ours, step);
    fill_gradients(reference, step);
    adamw.step();
    before.step();
    expect_same_bits(ours, reference, step);
  }
}

TEST(Optimizers, LibtorchsSchedulersDriveThem) {
  Tensors parameters = make_parameters();
  SGD sgd(parameters, {.lr = 1});
  torch::optim::StepLR schedule(sgd, /*step_size=*/1, /*gamma=*/0.5);
  for (int i = 0; i < 3; ++i) schedule.step();  // libtorch's first step changes nothing
  EXPECT_DOUBLE_EQ(get_lr(sgd), 0.25);
}

TEST(Optimizers, RefuseWhatMakesNoSense) {
  const Tensors parameters = make_parameters();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(SGD(Tensors{}, {.lr = 0.1}), c10::ValueError);
  EXPECT_THROW(SGD(parameters, {.lr = -0.1}), c10::ValueError);
  EXPECT_THROW(SGD(parameters, {.lr = nan}), c10::ValueError);
  EXPECT_THROW(SGD(parameters, {.lr = 0.1, .momentum = -1}), c10::ValueError);
  EXPECT_THROW(SGD(parameters, {.lr = 0.1, .nesterov = true}), c10::ValueError);
  EXPECT_THROW(Adam(parameters, {.beta2 = 1}), c10::ValueError);
  EXPECT_THROW(AdamW(parameters, {.beta1 = 1.5}), c10::ValueError);
  EXPECT_THROW(AdamW(parameters, {.eps = nan}), c10::ValueError);
  EXPECT_THROW(RMSprop(parameters, {.alpha = -1}), c10::ValueError);
  EXPECT_THROW(Adagrad(parameters, {.lr_decay = nan}), c10::ValueError);
  EXPECT_THROW(Lion(parameters, {.beta1 = nan}), c10::ValueError);
  EXPECT_THROW(Lion({at::zeros({2}, at::kLong)}, {}), c10::ValueError);
  LibtorchOptimizer::ParamGroups groups;
  groups.emplace_back(parameters, std::make_unique<torch::optim::AdamOptions>(0.1));
  EXPECT_THROW(SGD(groups, {.lr = 0.1}), c10::ValueError);
  LibtorchOptimizer::ParamGroups negative;
  negative.emplace_back(parameters, std::make_unique<torch::optim::SGDOptions>(-1));
  EXPECT_THROW(SGD(negative, {.lr = 0.1}), c10::ValueError);
}

}  // namespace bellows::optim
