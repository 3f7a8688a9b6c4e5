#include "bellows/amp/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/scaled_step.h"
#include "bellows/tap/observer.h"

namespace bellows::amp {

namespace {

using ::testing::HasSubstr;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// One weight of 1 with gradient `gradient` times the scale, and an optimizer with learning rate 1.
struct Toy {
  explicit Toy(float gradient = 0.5, at::ScalarType dtype = at::kFloat)
      : weight(torch::ones({2}, dtype).requires_grad_()),
        optimizer(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1)),
        factor(gradient) {}
  void backward(GradScaler& scaler) {
    optimizer.zero_grad();
    scaler.scale((weight * factor).sum()).backward();
  }
  at::Tensor weight;
  torch::optim::SGD optimizer;
  float factor;
};

template <class F>
std::string scaler_error(const F& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Unscales by itself and counts what it was given.
class SelfScaling final : public torch::optim::SGD, public ScaledStep {
 public:
  using SGD::SGD;
  bool takes_grad_scale() const override { return willing; }
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) override {
    scale = std::move(grad_scale);
    found = std::move(found_inf);
  }
  at::Tensor step(LossClosure = nullptr) override {
    const c10::NoGradGuard no_grad;
    for (const at::Tensor& p : param_groups()[0].params()) {
      const at::Tensor grad = scale.defined() ? p.grad() / scale : p.grad();
      p.copy_(torch::where(found > 0, p, p - grad));
    }
    ++steps;
    return {};
  }
  bool willing = true;
  int steps = 0;
  at::Tensor scale, found;
};

/// Operators that make the host wait for a value.
class CountWaits final : public tap::Observer {
 public:
  void before(const tap::OpEvent& op) override { waits += op.name == "aten::_local_scalar_dense"; }
  int waits = 0;
};

}  // namespace

TEST(GradScaler, StepsWithTheTrueGradient) {
  GradScaler scaler;
  Toy toy(0.5);
  toy.backward(scaler);
  EXPECT_EQ(toy.weight.grad()[0].item<float>(), 0.5 * 65536);
  scaler.step(toy.optimizer);
  scaler.update();
  EXPECT_EQ(toy.weight[0].item<float>(), 0.5);
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
}

TEST(GradScaler, GrowsAndBacksOff) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  Toy toy;
  for (int i = 0; i < 3; ++i) {
    toy.backward(scaler);
    scaler.step(toy.optimizer);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 16);
  EXPECT_EQ(scaler.get_growth_tracker(), 0);
  const at::Tensor before = toy.weight.detach().clone();
  toy.backward(scaler);
  toy.weight.grad()[1] = inf;
  scaler.step(toy.optimizer);
  EXPECT_GT(scaler.found_inf(toy.optimizer).item<float>(), 0);
  scaler.update();
  EXPECT_TRUE(torch::equal(toy.weight, before));
  EXPECT_EQ(scaler.get_scale(), 8);
}

TEST(GradScaler, UnscalesOnceWhenAskedAndStepUsesThat) {
  GradScaler scaler;
  Toy toy(0.25);
  toy.backward(scaler);
  scaler.unscale_(toy.optimizer);
  EXPECT_EQ(toy.weight.grad()[0].item<float>(), 0.25);
  toy.weight.grad().mul_(2);  // what clipping would do
  scaler.step(toy.optimizer);
  EXPECT_EQ(toy.weight[0].item<float>(), 0.5);
}

TEST(GradScaler, DisabledChangesNothing) {
  GradScaler scaler({.enabled = false});
  Toy toy;
  const at::Tensor loss = (toy.weight * 3).sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(toy.optimizer);
  scaler.step(toy.optimizer);
  scaler.update();
  EXPECT_EQ(toy.weight[0].item<float>(), -2);
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
  int calls = 0;
  scaler.step(toy.optimizer, [&] { return ++calls, loss; });
  EXPECT_EQ(calls, 1);
}

TEST(GradScaler, SelfScalingOptimizersAreNotWaitedFor) {
  GradScaler scaler({.init_scale = 4});
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  SelfScaling optimizer(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1));
  const auto watch = std::make_shared<CountWaits>();
  for (const bool bad : {false, true}) {
    optimizer.zero_grad();
    scaler.scale((weight * 0.5).sum()).backward();
    if (bad) weight.grad()[0] = inf;
    const tap::ObserverGuard guard(watch);
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_EQ(watch->waits, 0);
  EXPECT_EQ(optimizer.steps, 2);
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, SelfScalingOptimizersGetUnscaledGradientsAfterUnscale) {
  GradScaler scaler({.init_scale = 4});
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  SelfScaling optimizer(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1));
  scaler.scale((weight * 0.5).sum()).backward();
  scaler.unscale_(optimizer);
  scaler.step(optimizer);
  EXPECT_FALSE(optimizer.scale.defined());
  EXPECT_EQ(weight[0].item<float>(), 0.5);
  scaler.update();

  optimizer.willing = false;  // the scaler decides, then
  optimizer.zero_grad();
  scaler.scale((weight * 0.5).sum()).backward();
  weight.grad()[0] = nan;
  scaler.step(optimizer);
  EXPECT_EQ(optimizer.steps, 1);
}

TEST(GradScaler, OneOptimizersInfinityDoesNotStopTheOther) {
  GradScaler scaler;
  Toy good, bad;
  good.backward(scaler);
  bad.backward(scaler);
  bad.weight.grad()[0] = inf;
  scaler.step(good.optimizer);
  scaler.step(bad.optimizer);
  scaler.update();
  EXPECT_EQ(good.weight[0].item<float>(), 0.5);
  EXPECT_EQ(bad.weight[0].item<float>(), 1);
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScaler, SparseFp16ValuesAreAddedUpBeforeTheyAreChecked) {
  GradScaler scaler({.init_scale = 1, .allow_fp16 = true});
  const at::Tensor table = torch::zeros({4, 1}, at::kHalf).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{table}, torch::optim::SGDOptions(1));
  scaler.scale(torch::zeros({}));
  const auto indices = torch::tensor({{1, 1}});
  table.mutable_grad() = torch::sparse_coo_tensor(indices, torch::full({2, 1}, 40000.0, at::kHalf), {4, 1});
  scaler.step(optimizer);
  EXPECT_GT(scaler.found_inf(optimizer).item<float>(), 0);  // 40000 + 40000 is infinite in fp16
  EXPECT_TRUE(table.grad().is_coalesced());
}

TEST(GradScaler, MixedDtypesOfGradientsInOneOptimizer) {
  GradScaler scaler({.init_scale = 8});
  const at::Tensor a = torch::ones({3}).requires_grad_(), b = torch::ones({3}, at::kDouble).requires_grad_(),
                   c = torch::ones({3}, at::kBFloat16).requires_grad_();
  torch::optim::SGD optimizer(std::vector<at::Tensor>{a, b, c}, torch::optim::SGDOptions(1));
  scaler.scale(a.sum() + b.sum() + c.sum()).backward();
  scaler.unscale_(optimizer);
  for (const at::Tensor& t : {a, b, c}) EXPECT_EQ(t.grad()[2].item<float>(), 1);
}

TEST(GradScaler, TheInverseIsRoundedOnce) {
  GradScaler scaler({.init_scale = 3});
  Toy toy(1);
  toy.backward(scaler);
  scaler.unscale_(toy.optimizer);
  EXPECT_EQ(toy.weight.grad()[0].item<float>(), 3.0f * static_cast<float>(1.0 / 3.0));
}

TEST(GradScaler, ANewScaleEndsTheIteration) {
  GradScaler scaler;
  Toy toy;
  toy.backward(scaler);
  scaler.step(toy.optimizer);
  scaler.update(128);
  EXPECT_EQ(scaler.get_scale(), 128);
  toy.backward(scaler);
  scaler.step(toy.optimizer);
  scaler.update(torch::full({1}, 64.0));
  EXPECT_EQ(scaler.get_scale(), 64);
  EXPECT_THAT(scaler_error([&] { scaler.update(-1); }), HasSubstr("got -1"));
  EXPECT_THAT(scaler_error([&] { scaler.update(nan); }), HasSubstr("above 0"));
  EXPECT_THAT(scaler_error([&] { scaler.update(torch::ones({2})); }), HasSubstr("one element"));
  EXPECT_THAT(scaler_error([&] { scaler.update(torch::ones({1}).requires_grad_()); }), HasSubstr("requires_grad"));
  EXPECT_EQ(scaler.get_scale(), 64);
}

TEST(GradScaler, StateGoesOnInAnother) {
  GradScaler scaler({.init_scale = 32, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 10});
  Toy toy;
  for (int i = 0; i < 4; ++i) {
    toy.backward(scaler);
    scaler.step(toy.optimizer);
    scaler.update();
  }
  GradScaler fresh, used;
  Toy other;
  other.backward(used);
  for (GradScaler* target : {&fresh, &used}) {
    target->load_state_dict(scaler.state_dict());
    EXPECT_EQ(target->get_scale(), 32);
    EXPECT_EQ(target->get_growth_factor(), 3);
    EXPECT_EQ(target->get_backoff_factor(), 0.25);
    EXPECT_EQ(target->get_growth_interval(), 10);
    EXPECT_EQ(target->get_growth_tracker(), 4);
  }
}

TEST(GradScalerBadInput, Options) {
  for (const double factor : {1.0, 0.5, -2.0, nan, static_cast<double>(inf)}) {
    EXPECT_THAT(scaler_error([&] { GradScaler({.growth_factor = factor}); }), HasSubstr("growth_factor above 1"));
  }
  for (const double factor : {1.0, 0.0, -0.5, nan}) {
    EXPECT_THAT(scaler_error([&] { GradScaler({.backoff_factor = factor}); }), HasSubstr("between 0 and 1"));
  }
  for (const double scale : {0.0, -1.0, nan, static_cast<double>(inf)}) {
    EXPECT_THAT(scaler_error([&] { GradScaler({.init_scale = scale}); }), HasSubstr("scale above 0"));
  }
  EXPECT_THAT(scaler_error([] { GradScaler({.growth_interval = 0}); }), HasSubstr("at least 1 step"));
  GradScaler scaler;
  EXPECT_THAT(scaler_error([&] { scaler.set_growth_factor(nan); }), HasSubstr("set_growth_factor"));
  EXPECT_THAT(scaler_error([&] { scaler.set_backoff_factor(2); }), HasSubstr("set_backoff_factor"));
  EXPECT_THAT(scaler_error([&] { scaler.set_growth_interval(-1); }), HasSubstr("set_growth_interval"));
}

TEST(GradScalerBadInput, CallsInTheWrongOrder) {
  GradScaler scaler;
  Toy toy;
  EXPECT_THAT(scaler_error([&] { scaler.step(toy.optimizer); }), HasSubstr("scale() has not been called"));
  EXPECT_THAT(scaler_error([&] { scaler.unscale_(toy.optimizer); }), HasSubstr("scale() has not been called"));
  EXPECT_THAT(scaler_error([&] { scaler.update(); }), HasSubstr("scale() has not been called"));
  scaler.scale(torch::ones({}));
  EXPECT_THAT(scaler_error([&] { scaler.step(toy.optimizer); }), HasSubstr("none of its 1 parameters has a gradient"));
  EXPECT_THAT(scaler_error([&] { scaler.update(); }), HasSubstr("no inf checks were recorded before update()"));
  EXPECT_THAT(scaler_error([&] { scaler.found_inf(toy.optimizer); }), HasSubstr("has not been checked"));
  toy.backward(scaler);
  EXPECT_THAT(scaler_error([&] { scaler.step(toy.optimizer, [] { return at::Tensor(); }); }), HasSubstr("closures"));
  scaler.unscale_(toy.optimizer);
  EXPECT_THAT(scaler_error([&] { scaler.unscale_(toy.optimizer); }), HasSubstr("has already been called"));
  scaler.step(toy.optimizer);
  EXPECT_THAT(scaler_error([&] { scaler.step(toy.optimizer); }), HasSubstr("has already been called"));
  EXPECT_THAT(scaler_error([&] { scaler.unscale_(toy.optimizer); }), HasSubstr("after step()"));
  scaler.update();
  toy.backward(scaler);
  scaler.step(toy.optimizer);  // after update(), all over again
}

TEST(GradScalerBadInput, TensorsThatCannotBeScaled) {
  GradScaler scaler;
  EXPECT_THAT(scaler_error([&] { scaler.scale(at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(scaler_error([&] { scaler.scale(torch::ones({}, at::kLong)); }), HasSubstr("floating-point"));
  Toy half(0.5, at::kHalf);
  half.backward(scaler);
  EXPECT_THAT(scaler_error([&] { scaler.step(half.optimizer); }), HasSubstr("fp16 gradient"));
}

TEST(GradScalerBadInput, StatesOfOthers) {
  GradScaler scaler({.init_scale = 16});
  NamedTensors state = scaler.state_dict();
  EXPECT_THAT(scaler_error([&] { scaler.load_state_dict({}); }), HasSubstr("empty"));
  NamedTensors missing(state.begin(), state.end() - 1);
  EXPECT_THAT(scaler_error([&] { scaler.load_state_dict(missing); }), HasSubstr("_growth_tracker"));
  NamedTensors unknown = state;
  unknown[1].first = "grow_factor";
  EXPECT_THAT(scaler_error([&] { scaler.load_state_dict(unknown); }), HasSubstr("Did you mean \"growth_factor\"?"));
  for (const double value : {nan, -1.0, static_cast<double>(inf)}) {
    for (const size_t entry : {0, 1, 2, 3, 4}) {
      NamedTensors wrong = state;
      wrong[entry].second = torch::tensor(value, at::kDouble);
      EXPECT_THROW(scaler.load_state_dict(wrong), c10::ValueError) << value << " " << wrong[entry].first;
    }
  }
  NamedTensors vector = state;
  vector[0].second = torch::ones({2});
  EXPECT_THAT(scaler_error([&] { scaler.load_state_dict(vector); }), HasSubstr("one number"));
  EXPECT_EQ(scaler.get_scale(), 16);
}

}  // namespace bellows::amp
