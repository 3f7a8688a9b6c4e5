#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "bellows/compile.h"
#include "bellows/optim/optimizers.h"
#include "tests/graph/support.h"

namespace bellows::compile_detail::testing {
namespace {

namespace nn = torch::nn;
using graph::testing::first_difference;
using graph::testing::Tensors;

/// A network, its optimizer, and a step on a batch of the size that the call has.
class Training {
 public:
  virtual ~Training() = default;
  virtual void step(int call) = 0;
  virtual nn::Module& model() = 0;
  virtual torch::optim::Optimizer& optimizer() = 0;

  /// Everything from which a later step computes.
  std::string saved() {
    torch::serialize::OutputArchive archive, model_part, optimizer_part;
    model().save(model_part);
    optimizer().save(optimizer_part);
    archive.write("model", model_part);
    archive.write("optimizer", optimizer_part);
    archive.write("generator", at::detail::getDefaultCPUGenerator().get_state());
    std::ostringstream text;
    archive.save_to(text);
    return text.str();
  }
  void resume(const std::string& saved) {
    torch::serialize::InputArchive archive, model_part, optimizer_part;
    std::istringstream text(saved);
    archive.load_from(text);
    archive.read("model", model_part);
    archive.read("optimizer", optimizer_part);
    model().load(model_part);
    optimizer().load(optimizer_part);
    at::Tensor generator;
    archive.read("generator", generator);
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(generator);
  }
  Tensors weights() {
    Tensors all;
    for (const at::Tensor& one : model().parameters()) all.push_back(one.detach().clone());
    for (const at::Tensor& one : model().buffers()) all.push_back(one.clone());
    return all;
  }
};

/// Dropout, a normalization, a schedule of the learning rate, a smaller batch in each third call, and a branch that
/// depends on data.
template <class Optimizer, class Options>
class Example : public Training {
 public:
  Example(const std::function<nn::Sequential()>& make, at::IntArrayRef sizes, Options options)
      : model_(make()), optimizer_(model_->parameters(), options), sizes_(sizes.vec()) {}

  void step(int call) override {
    const auto seed = at::detail::createCPUGenerator(100 + call);
    sizes_[0] = call % 3 == 2 ? 5 : 12;
    const at::Tensor x = at::randn(sizes_, seed), y = at::randint(4, {sizes_[0]}, seed, at::kLong);
    optimizer_.param_groups()[0].options().set_lr(0.01 / (1 + call));
    optimizer_.zero_grad();
    const at::Tensor loss = nn::functional::cross_entropy(model_->forward(x), y);
    loss.backward();
    if (loss.item<float>() > 1.2) {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& one : model_->parameters()) one.grad().mul_(0.7);
    }
    optimizer_.step();
  }
  nn::Module& model() override { return *model_; }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }

 private:
  nn::Sequential model_;
  Optimizer optimizer_;
  std::vector<int64_t> sizes_;
};

nn::Sequential dense() {
  return nn::Sequential(nn::Linear(20, 33), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({33})), nn::Dropout(0.2),
                        nn::Linear(33, 4));
}

nn::Sequential convolutional() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::Conv2d(nn::Conv2dOptions(8, 8, 3).stride(2)), nn::BatchNorm2d(8), nn::ReLU(),
                        nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(8, 4));
}

using Maker = std::function<std::unique_ptr<Training>()>;

template <class Optimizer, class Options>
Maker maker(nn::Sequential (*make)(), std::vector<int64_t> sizes, Options options) {
  return [=] {
    torch::manual_seed(4);
    return std::make_unique<Example<Optimizer, Options>>(make, sizes, options);
  };
}

std::vector<Maker> examples() {
  const std::vector<int64_t> rows{12, 20}, images{12, 3, 10, 10};
  return {maker<torch::optim::AdamW>(&dense, rows, torch::optim::AdamWOptions(0.01)),
          maker<torch::optim::SGD>(&convolutional, images, torch::optim::SGDOptions(0.01).momentum(0.9)),
          maker<optim::AdamW>(&convolutional, images, optim::AdamWOptions{.lr = 0.01}),
          maker<optim::SGD>(&dense, rows, optim::SGDOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true})};
}

constexpr int steps = 8;

/// The weights after all steps. At the given step, the process "ends": everything is loaded into new objects.
Tensors trained(const Maker& make, const CompileOptions& options, int resumed_at = -1) {
  auto training = make();
  const auto compiled = [&] {
    return std::make_unique<Compiled<std::function<void(int)>>>([&training](int call) { training->step(call); },
                                                                options);
  };
  auto step = compiled();
  for (int call = 0; call < steps; ++call) {
    if (call == resumed_at) {
      const std::string saved = training->saved();
      step.reset();
      training = make();
      torch::manual_seed(99);
      training->resume(saved);
      step = compiled();
    }
    (*step)(call);
    EXPECT_EQ(step->ready(), true) << "after call " << call;
  }
  return training->weights();
}

TEST(Reproducible, AResumedRunGivesTheBitsOfAnUninterruptedOne) {
  for (const CompileOptions& options : {CompileOptions{}, {.always = true}}) {
    int number = 0;
    for (const Maker& make : examples()) {
      const Tensors expected = trained(make, options);
      EXPECT_EQ(first_difference(expected, trained(make, options)), -1) << "example " << number << ", same run again";
      for (int resumed_at = 1; resumed_at < steps; ++resumed_at)
        EXPECT_EQ(first_difference(expected, trained(make, options, resumed_at)), -1)
            << "example " << number << ", resumed at step " << resumed_at;
      ++number;
    }
  }
}

TEST(Reproducible, OptimizedProgramsRunFromTheFirstCallOn) {
  const auto compiled = compile([](const at::Tensor& x) { return (x * 2).tanh().sum(); }, {.always = true});
  const c10::InferenceMode inference;
  compiled(torch::ones({8}));
  const graph::Explanation said = compiled.explain();
  EXPECT_EQ(said.program_runs, 1);
  EXPECT_EQ(said.recorded, 3);
  EXPECT_THAT(said.to_text(), ::testing::HasSubstr("kernels: 1"));
}

TEST(Reproducible, InTheBackgroundCallsDoNotWait) {
  const auto compiled =
      compile([](const at::Tensor& x) { return (x * 3).tanh().sum(); }, {.background = true, .always = true});
  const c10::InferenceMode inference;
  for (int call = 0; call < 2; ++call) compiled(torch::ones({8}));
  EXPECT_EQ(compiled.explain().deferred, 3) << "the first call runs eagerly";
}

/// Where zeros are no valid data, or sizes depend on data, the operator runs when it is called.
TEST(Reproducible, OperatorsThatReadDataAreRecorded) {
  const at::Tensor x = torch::eye(3) * 4 + 1;
  const auto body = [&](int call) {
    const at::NoGradGuard no_grad;
    const at::Tensor positive = x * (call + 1);
    const at::Tensor factor = at::linalg_cholesky(positive).sum();        // fails on zeros
    const at::Tensor chosen = at::masked_select(positive, positive > 3);  // sizes depend on data
    return factor + chosen.sum() + at::nonzero(positive).sum();
  };
  const auto compiled = compile(body, {.always = true});
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(call), body(call)));
}

TEST(Reproducible, InvalidArgumentsFailWhereTheOperatorIsCalled) {
  const auto compiled = compile(
      [](const at::Tensor& x) {
        const at::Tensor y = x * 2;
        try {
          return at::mm(y, torch::ones({7, 7}));
        } catch (const c10::Error&) {
          return y + 1;
        }
      },
      {.always = true});
  for (int call = 0; call < 3; ++call) EXPECT_EQ(compiled(torch::ones({2, 3})).sum().item<float>(), 18);
}

TEST(Reproducible, RecordingWritesNothing) {
  const at::Tensor state = torch::ones({4}), before = torch::full({4}, 2.0);
  const auto compiled = compile(
      [&](const at::Tensor& x) {
        const at::NoGradGuard no_grad;
        const at::Tensor view = state.slice(0, 1, 3);
        view.add_(x.slice(0, 1, 3));
        state.mul_(2);
        return view + state.slice(0, 0, 2);
      },
      {.always = true});
  EXPECT_TRUE(at::equal(compiled(before), torch::tensor({8.0F, 12.0F})));
  EXPECT_TRUE(at::equal(state, torch::tensor({2.0F, 6.0F, 6.0F, 2.0F})));
}

TEST(Reproducible, OperatorsWithSeveralOutArgumentsAreRecorded) {
  for (const bool generate : {true, false}) {
    at::Tensor values = torch::empty({2}), places = torch::empty({2}, at::kLong);
    const auto compiled = compile(
        [&](const at::Tensor& x) {
          const at::NoGradGuard no_grad;
          at::topk_out(values, places, x * 2, 2);
        },
        {.generate = generate, .always = true});
    for (int call = 0; call < 3; ++call) {
      compiled(torch::tensor({1.0F, 5.0F, 3.0F, 2.0F}));
      EXPECT_TRUE(at::equal(values, torch::tensor({10.0F, 6.0F})));
      EXPECT_TRUE(at::equal(places, torch::tensor({1, 2})));
    }
  }
}

TEST(Reproducible, UndeclaredWritesTakeEffectOnce) {
  const at::Tensor mean = torch::zeros({3}), variance = torch::ones({3});
  const auto body = [&](const at::Tensor& mean_now, const at::Tensor& variance_now) {
    const at::NoGradGuard no_grad;
    return std::get<0>(at::batch_norm_update_stats(torch::ones({4, 3, 2, 2}), mean_now, variance_now, 0.5));
  };
  compile(body, {.always = true})(mean, variance);
  EXPECT_TRUE(at::equal(mean, torch::full({3}, 0.5)));
}

TEST(Reproducible, InputsAreGuardedInTheFirstCall) {
  const at::Tensor x = torch::ones({3});
  std::string error;
  compile(
      [&] {
        const at::NoGradGuard no_grad;
        const at::Tensor y = x + 1, z = x * 2;
        try {
          x.mutable_data_ptr<float>()[0] = 100;
        } catch (const c10::Error& caught) {
          error = caught.what_without_backtrace();
        }
        return y + z;
      },
      {.always = true})();
  EXPECT_THAT(error, ::testing::HasSubstr("sync()"));
}

TEST(Reproducible, LinearAlgebraWithPivotsRunsOnRealData) {
  const at::Tensor a = torch::eye(4) * 3 + 1, b = torch::arange(8.0F).reshape({4, 2});
  const auto body = [&] {
    const at::NoGradGuard no_grad;
    const auto [factors, pivots, info] = at::linalg_ldl_factor_ex(a * 1);
    return at::linalg_ldl_solve(factors, pivots, b);
  };
  const auto compiled = compile(body, {.always = true});
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(), body()));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
