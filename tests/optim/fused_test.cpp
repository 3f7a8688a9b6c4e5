#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/error.h"
#include "bellows/kernels/cpu/optimizer_chunks.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "tests/optim/support.h"

namespace bellows::optim {

namespace {

using FusedTensors = std::vector<at::Tensor>;

/// No elements, awkward sizes, a strided view, a column whose stride means nothing, channels-last, several chunks,
/// float64 beside float32.
FusedTensors fused_parameters() {
  at::manual_seed(21);
  FusedTensors result = {
      torch::randn({0, 3}),     torch::randn({}),
      torch::randn({17}),       torch::randn({6, 8}).slice(1, 0, 8, 2),
      torch::randn({9, 1}),     torch::randn({8, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::randn({211, 257}), torch::randn({33}, at::kDouble)};
  for (auto& p : result) p = p.detach().requires_grad_(true);
  return result;
}

/// Gradients of the step, in layouts of their own: contiguous, expanded, transposed.
void fused_gradients(const FusedTensors& parameters, int step) {
  at::manual_seed(300 + static_cast<uint64_t>(step));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& p = parameters[i];
    at::Tensor grad = torch::randn(p.sizes(), p.scalar_type());
    if (p.dim() == 2 && step % 2) grad = grad.t().contiguous().t();
    if (i == 2 && step % 3 == 0) grad = torch::randn({1}).expand({17});
    p.mutable_grad() = grad;
  }
}

struct FusedCase {
  const char* name;
  const char* optimizer;
  nlohmann::json options;
};

std::vector<FusedCase> fused_cases() {
  return {{"sgd", "SGD", {{"lr", 0.1}}},
          {"sgd_momentum", "SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.1}, {"weight_decay", 0.01}}},
          {"adam", "Adam", {{"lr", 0.01}, {"weight_decay", 0.1}, {"maximize", true}}},
          {"adamw", "AdamW", {{"lr", 0.01}, {"amsgrad", true}}},
          {"rmsprop", "RMSprop", {{"lr", 0.01}, {"momentum", 0.9}, {"centered", true}, {"alpha", 0.5}, {"eps", 0.01}}},
          {"adagrad", "Adagrad", {{"lr", 0.1}, {"lr_decay", 0.1}}},
          {"lion", "Lion", {{"lr", 0.01}, {"weight_decay", 0.1}}}};
}

std::string fused_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "";
}

/// Steps of one optimizer of the case from its own copy of the parameters.
struct FusedRun {
  FusedTensors parameters;
  std::unique_ptr<LibtorchOptimizer> optimizer;
  FusedRun(const FusedCase& c, Impl impl) : parameters(fused_parameters()) {
    optimizer = make_optimizer(c.optimizer, c.options, parameters, impl, false);
  }
  void step(int number) {
    fused_gradients(parameters, number);
    optimizer->step();
  }
};

}  // namespace

class FusedTest : public testing::TestWithParam<FusedCase> {};

// Not bit for bit: the fused kernels keep what the operators round in between. A step differs by a few units in the last
// place of the parameter or of the update; ten steps feed that back.
TEST_P(FusedTest, EqualsTheLoop) {
  FusedRun fused(GetParam(), Impl::fused), loop(GetParam(), Impl::loop);
  for (int step = 0; step < 10; ++step) {
    fused.step(step);
    loop.step(step);
    for (size_t i = 0; i < fused.parameters.size(); ++i) {
      const double limit = fused.parameters[i].scalar_type() == at::kDouble ? 1e-13 : 4e-6;
      EXPECT_TRUE(torch::allclose(fused.parameters[i], loop.parameters[i], limit, limit))
          << "parameter " << i << ", step " << step << ": "
          << (fused.parameters[i] - loop.parameters[i]).abs().max().item<double>();
      EXPECT_EQ(fused.parameters[i].strides(), loop.parameters[i].strides());
    }
  }
  const NamedTensors ours = state_dict(*fused.optimizer), theirs = state_dict(*loop.optimizer);
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].first, theirs[i].first);
    EXPECT_TRUE(torch::allclose(ours[i].second, theirs[i].second, 4e-6, 4e-6)) << ours[i].first;
  }
}

TEST_P(FusedTest, ChangesImplementationInMidRun) {
  FusedRun mixed(GetParam(), Impl::fused), loop(GetParam(), Impl::loop);
  for (int step = 0; step < 6; ++step) {
    mixed.optimizer->set_impl(step % 3 == 0 ? Impl::fused : step % 3 == 1 ? Impl::loop : Impl::foreach);
    mixed.step(step);
    loop.step(step);
  }
  for (size_t i = 0; i < mixed.parameters.size(); ++i)
    EXPECT_TRUE(torch::allclose(mixed.parameters[i], loop.parameters[i], 4e-6, 4e-6)) << i;
}

TEST_P(FusedTest, DividesByTheScaleAndSkipsInfinity) {
  FusedRun scaled(GetParam(), Impl::fused), plain(GetParam(), Impl::fused);
  ASSERT_TRUE(scaled.optimizer->takes_grad_scale());
  for (int step = 0; step < 4; ++step) {
    plain.step(step);
    fused_gradients(scaled.parameters, step);
    if (step == 2) {  // a step that overflowed first: nothing may change, not even the count of steps
      scaled.optimizer->set_grad_scale(torch::tensor(1024.0f), torch::tensor(1.0f));
      scaled.optimizer->step();
    }
    FusedTensors gradients;
    for (auto& p : scaled.parameters) {
      p.mutable_grad() = p.grad() * 1024;
      gradients.push_back(p.grad().clone());
    }
    scaled.optimizer->set_grad_scale(torch::tensor(1024.0f), torch::tensor(0.0f));
    scaled.optimizer->step();
    for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(torch::equal(scaled.parameters[i].grad(), gradients[i]));
  }
  for (size_t i = 0; i < scaled.parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(scaled.parameters[i], plain.parameters[i])) << i;
}

// bf16 weights round away small steps; the master copy does not.
TEST_P(FusedTest, MasterWeightsCollectSmallSteps) {
  for (const Impl impl : {Impl::loop, Impl::foreach, Impl::fused}) {
    nlohmann::json options = GetParam().options;
    options["lr"] = 1e-5;
    options["maximize"] = false;
    options["weight_decay"] = 0;
    const FusedTensors low = {torch::ones({20}, at::kBFloat16).requires_grad_(true)};
    const FusedTensors single = {torch::ones({20}).requires_grad_(true)};
    const auto with_master = make_optimizer(GetParam().optimizer, options, low, impl, true);
    const auto fp32 = make_optimizer(GetParam().optimizer, options, single, impl, false);
    for (int step = 0; step < 20; ++step) {
      low[0].mutable_grad() = torch::ones({20}, at::kBFloat16);
      single[0].mutable_grad() = torch::ones({20});
      with_master->step();
      fp32->step();
    }
    const at::Tensor master = with_master->master_weight(low[0]);
    EXPECT_EQ(master.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::allclose(master, single[0], 1e-6, 1e-6));
    EXPECT_LT(master.max().item<double>(), 1);
    EXPECT_TRUE(torch::equal(low[0], master.to(at::kBFloat16)));
    for (const auto& [name, tensor] : state_dict(*with_master)) EXPECT_NE(tensor.scalar_type(), at::kBFloat16) << name;
  }
}

TEST_P(FusedTest, TheTensorIsTheLearningRate) {
  for (const Impl impl : {Impl::loop, Impl::foreach, Impl::fused}) {
    FusedRun tensor(GetParam(), impl), number(GetParam(), impl);
    const at::Tensor lr = torch::tensor(0.25, at::kDouble);
    tensor.optimizer->set_lr_tensor(lr);
    set_lr(*number.optimizer, 0.25);
    tensor.step(0);
    number.step(0);
    EXPECT_EQ(get_lr(*tensor.optimizer), 0.25);
    set_lr(*tensor.optimizer, 0.125);  // a schedule reaches the tensor
    EXPECT_EQ(lr.item<double>(), 0.125);
    set_lr(*number.optimizer, 0.125);
    tensor.step(1);
    number.step(1);
    for (size_t i = 0; i < tensor.parameters.size(); ++i)
      EXPECT_TRUE(torch::equal(tensor.parameters[i], number.parameters[i])) << i;
    lr.fill_(-1);
    EXPECT_THROW(tensor.step(2), c10::ValueError);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FusedTest, testing::ValuesIn(fused_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Automatic, TakesFusedOnTheCpuAndTheLoopWhereItCannot) {
  FusedTensors parameters = fused_parameters();
  SGD sgd(parameters, {.lr = 0.1});
  EXPECT_EQ(sgd.next_impl(), Impl::fused);
  EXPECT_TRUE(sgd.takes_grad_scale());
  SGD loop(parameters, {.lr = 0.1, .impl = Impl::loop});
  EXPECT_FALSE(loop.takes_grad_scale());
  loop.set_grad_scale(torch::tensor(2.0f), {});
  EXPECT_THAT(fused_error([&] { loop.step(); }), testing::HasSubstr("unscale_"));

  FusedTensors complex = {torch::ones({3}, at::kComplexFloat).requires_grad_(true)};
  complex[0].mutable_grad() = torch::ones({3}, at::kComplexFloat);
  SGD waves(complex, {.lr = 0.5});
  EXPECT_EQ(waves.next_impl(), Impl::loop);
  waves.step();
  EXPECT_TRUE(torch::equal(complex[0], torch::full({3}, 0.5).to(at::kComplexFloat)));
  waves.set_impl(Impl::fused);
  EXPECT_THAT(fused_error([&] { waves.step(); }), testing::HasSubstr("no fused kernel for a ComplexFloat"));
}

TEST(Fused, SparseGradientsTakeTheLoopOrAreRefused) {
  const auto gradient = [] {
    return torch::sparse_coo_tensor(torch::tensor({{1, 3}}), torch::tensor({1.0f, 2.0f}), {5});
  };
  FusedTensors parameters = {torch::ones({5}, torch::requires_grad())};
  parameters[0].mutable_grad() = gradient();
  Adagrad adagrad(parameters, {.lr = 0.5, .impl = Impl::fused});
  EXPECT_EQ(adagrad.next_impl(), Impl::loop);
  EXPECT_FALSE(adagrad.takes_grad_scale());
  adagrad.step();
  EXPECT_TRUE(torch::allclose(parameters[0], torch::tensor({1.0f, 0.5f, 1.0f, 0.5f, 1.0f})));
  const auto refuses = [&](LibtorchOptimizer&& optimizer) {
    EXPECT_THAT(fused_error([&] { optimizer.step(); }), testing::HasSubstr("parameter 0 has a sparse gradient"));
  };
  refuses(Adam(parameters, {}));
  refuses(AdamW(parameters, {.impl = Impl::loop}));
  refuses(RMSprop(parameters, {}));
  refuses(Lion(parameters, {}));
}

TEST(Fused, GradientsThatDoNotFitAreRefused) {
  FusedTensors parameters = {torch::ones({4}, torch::requires_grad()), torch::ones({5}, torch::requires_grad())};
  SGD sgd(parameters, {.lr = 0.1});
  parameters[1].mutable_grad() = torch::ones({5}, at::kBFloat16);  // another type is converted as it is read
  sgd.step();
  EXPECT_TRUE(torch::allclose(parameters[1], torch::full({5}, 0.9)));
  parameters[1].unsafeGetTensorImpl()->set_sizes_contiguous({3});
  EXPECT_THAT(fused_error([&] { sgd.step(); }),
              testing::AllOf(testing::HasSubstr("gradient of parameter 1"), testing::HasSubstr("[5]")));
}

TEST(Fused, AutogradSeesThatTheParametersChanged) {
  FusedTensors parameters = {torch::ones({3}, torch::requires_grad())};
  const at::Tensor loss = (parameters[0] * parameters[0]).sum();
  parameters[0].mutable_grad() = torch::ones({3});
  SGD sgd(parameters, {.lr = 0.5, .impl = Impl::fused});
  sgd.step();
  EXPECT_EQ(parameters[0]._version(), 1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Fused, AStepWithoutGradientsChangesNothing) {
  FusedTensors parameters = fused_parameters();
  const at::Tensor before = parameters[6].detach().clone();
  AdamW adamw(parameters, {.lr = 0.1, .weight_decay = 1});
  adamw.step();
  EXPECT_TRUE(torch::equal(parameters[6], before));
  EXPECT_TRUE(adamw.state().empty());
}

TEST(Fused, MasterWeightsFollowWeightsThatWereLoaded) {
  FusedTensors parameters = {torch::ones({4}, at::kBFloat16).requires_grad_(true)};
  SGD sgd(parameters, {.lr = 0.5, .master_weights = true});
  parameters[0].mutable_grad() = torch::ones({4}, at::kBFloat16);
  sgd.step();
  {
    const c10::NoGradGuard no_grad;
    parameters[0].fill_(3);
  }
  sgd.refresh_master_weights();
  sgd.step();
  EXPECT_TRUE(torch::equal(parameters[0], torch::full({4}, 2.5, at::kBFloat16)));
}

TEST(ParamGroups, DividesByPattern) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})),
                            torch::nn::Linear(4, 2));
  const Model model("net", net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); });
  const auto groups =
      param_groups(model, {{.pattern = "*.bias", .weight_decay = 0}, {.pattern = "1.*", .lr = 0.5, .beta1 = 0.5}});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_THAT(groups[0].names, testing::ElementsAre("0.bias", "1.bias", "2.bias"));
  EXPECT_THAT(groups[1].names, testing::ElementsAre("1.weight"));
  EXPECT_THAT(groups[2].names, testing::ElementsAre("0.weight", "2.weight"));

  AdamW adamw(groups, {.lr = 0.1, .weight_decay = 0.3});
  const auto options = [&](size_t g) -> auto& {
    return static_cast<const torch::optim::AdamWOptions&>(adamw.param_groups()[g].options());
  };
  EXPECT_EQ(options(0).weight_decay(), 0);
  EXPECT_EQ(options(0).lr(), 0.1);
  EXPECT_EQ(options(1).lr(), 0.5);
  EXPECT_EQ(options(1).betas(), std::make_tuple(0.5, 0.999));
  EXPECT_EQ(options(2).weight_decay(), 0.3);

  EXPECT_THAT(fused_error([&] { param_groups(model, {{.pattern = "*.bais"}}); }),
              testing::AllOf(testing::HasSubstr("*.bais"), testing::HasSubstr("bias")));
  EXPECT_THAT(fused_error([&] {
                param_groups(model, {{.pattern = "*"}, {.pattern = "0.*"}});
              }),
              testing::HasSubstr("rule 1"));
  EXPECT_THAT(fused_error([&] { SGD(param_groups(model, {{.pattern = "*", .eps = 1}}), {}); }),
              testing::HasSubstr("sets eps"));
  EXPECT_THAT(fused_error([&] { SGD(param_groups(model, {{.pattern = "*", .lr = -1}}), {}); }),
              testing::HasSubstr("lr"));
}

TEST(FusedStep, WakesNoThreadsForSmallTensors) {
  using Tensors = std::vector<kernels::StepTensor<kernels::SgdRule>>;
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const auto in_team = [](const Tensors& tensors) {
    std::atomic<bool> result = false;
    std::atomic<size_t> elements = 0;
    kernels::cpu::step_chunks(std::span(tensors), {}, [&](const auto&, kernels::StepTypes, size_t begin, size_t end) {
      if (at::in_parallel_region()) result = true;
      elements += end - begin;
    });
    size_t expected = 0;
    for (const auto& t : tensors) expected += static_cast<size_t>(t.size);
    EXPECT_EQ(elements, expected);
    return result.load();
  };
  EXPECT_FALSE(in_team({{.size = 100}, {.size = 10}}));
  EXPECT_FALSE(in_team({{.size = 4096}, {.size = 0}, {.size = 64}}));
  EXPECT_FALSE(in_team({}));
  EXPECT_TRUE(in_team({{.size = 16384}, {.size = 16384}}));
  at::set_num_threads(threads);
}

}  // namespace bellows::optim
