#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "bellows/kernels/cpu/optimizers.h"
#include "bellows/kernels/ref/optimizers.h"

namespace bellows::kernels {

namespace {

using at::Tensor;

const std::map<Type, at::ScalarType>& scalar_types() {
  static const std::map<Type, at::ScalarType> types = {
      {Type::f32, at::kFloat}, {Type::f64, at::kDouble}, {Type::bf16, at::kBFloat16}, {Type::f16, at::kHalf}};
  return types;
}

/// The arrays of one tensor's step, with a few elements behind the end that nobody may touch.
struct StepArrays {
  static constexpr int64_t margin = 8;
  static constexpr double untouched = 42;
  Tensor param, grad, master;
  std::vector<Tensor> state;

  StepArrays(int64_t size, StepTypes types, int states, bool with_master) {
    const auto make = [&](Type type, bool positive) {
      Tensor all = at::randn({size + margin}, at::kDouble);
      if (positive) all = all.square();
      all.slice(0, size).fill_(untouched);
      return all.to(scalar_types().at(type));
    };
    param = make(types.param, false);
    grad = make(types.grad, false);
    if (with_master) master = make(Type::f32, false);
    for (int k = 0; k < states; ++k) state.push_back(make(types.state, true));
  }
  StepArrays clone() const {
    StepArrays copy = *this;
    for (Tensor* t : copy.all()) *t = t->clone();
    return copy;
  }
  std::vector<Tensor*> all() {
    std::vector<Tensor*> result = {&param, &grad};
    if (master.defined()) result.push_back(&master);
    for (Tensor& s : state) result.push_back(&s);
    return result;
  }
  template <class Rule>
  StepTensor<Rule> step(const Rule& rule) {
    StepTensor<Rule> t{.size = param.numel() - margin, .param = param.mutable_data_ptr()};
    t.grad = grad.const_data_ptr();
    if (master.defined()) t.master = master.mutable_data_ptr();
    for (size_t k = 0; k < state.size(); ++k) t.state[k] = state[k].mutable_data_ptr();
    t.rule = rule;
    return t;
  }
};

/// Relative to the largest number that took part: a difference of nearly equal numbers keeps the error of its terms.
double tolerance(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 4e-15;
    case at::kFloat:
      return 2e-6;
    case at::kBFloat16:
      return 1e-2;  // one unit in the last place: both round once, from values that differ in fp32
    default:
      return 1.5e-3;
  }
}

template <class Rule>
void expect_parity(const Rule& rule, StepTypes types, bool with_master) {
  std::vector<StepArrays> fast, reference;
  std::vector<StepTensor<Rule>> fast_steps, reference_steps;
  for (const int64_t size : {0, 1, 15, 16, 17, 1023, 1025, 20000}) {
    fast.emplace_back(size, types, rule.states(), with_master);
    reference.push_back(fast.back().clone());
  }
  for (size_t i = 0; i < fast.size(); ++i) {
    fast_steps.push_back(fast[i].step(rule));
    reference_steps.push_back(reference[i].step(rule));
  }
  cpu::step(fast_steps, types);
  ref::step(reference_steps, types);
  for (size_t i = 0; i < fast.size(); ++i) {
    const auto ours = fast[i].all(), theirs = reference[i].all();
    for (size_t k = 0; k < ours.size(); ++k) {
      const double limit = tolerance(ours[k]->scalar_type());
      const Tensor a = ours[k]->to(at::kDouble), b = theirs[k]->to(at::kDouble);
      EXPECT_TRUE(at::allclose(a, b, limit, limit))
          << "array " << k << " of " << a.numel() << " elements differs by " << (a - b).abs().max().item<double>();
      EXPECT_TRUE(at::equal(a.slice(0, a.size(0) - StepArrays::margin),
                            at::full({StepArrays::margin}, StepArrays::untouched, at::kDouble)));
    }
  }
}

struct TypeCase {
  const char* name;
  StepTypes types;
  bool master;
};

std::vector<TypeCase> type_cases() {
  return {{"f32", {}, false},
          {"f64", {Type::f64, Type::f64, Type::f64}, false},
          {"bf16", {Type::bf16, Type::bf16, Type::bf16}, false},
          {"f16", {Type::f16, Type::f16, Type::f16}, false},
          {"bf16_master", {Type::bf16, Type::bf16, Type::f32}, true},
          {"f16_master", {Type::f16, Type::f16, Type::f32}, true},
          {"bf16_master_f32_gradient", {Type::bf16, Type::f32, Type::f32}, true},
          {"f32_bf16_gradient", {Type::f32, Type::bf16, Type::f32}, false},
          {"bf16_f32_state", {Type::bf16, Type::bf16, Type::f32}, false}};
}

}  // namespace

class OptimizerKernels : public testing::TestWithParam<TypeCase> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  template <class Rule>
  void check(const Rule& rule) {
    expect_parity(rule, GetParam().types, GetParam().master);
  }
};

TEST_P(OptimizerKernels, Sgd) {
  check(SgdRule{.lr = 0.1});
  check(SgdRule{.lr = 0.1, .weight_decay = 0.01, .grad_factor = -0.25});
  check(SgdRule{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01});
  check(SgdRule{.lr = 0.1, .momentum = 0.9, .nesterov = true});
  check(SgdRule{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .first = true});
}

TEST_P(OptimizerKernels, Adam) {
  const AdamRule base{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .step = 7};
  for (const bool decoupled : {false, true}) {
    for (const bool amsgrad : {false, true}) {
      AdamRule rule = base;
      rule.decoupled = decoupled;
      rule.amsgrad = amsgrad;
      check(rule);
      rule.grad_factor = 1.0 / 3;
      check(rule);
    }
  }
}

TEST_P(OptimizerKernels, Rmsprop) {
  // The mean of squares has to stay above the square of the mean, as it does in training: alpha near 0 sees to that.
  for (const double momentum : {0.0, 0.9}) {
    check(RmspropRule{.lr = 0.01, .alpha = 0.9, .eps = 1e-4, .weight_decay = 0.1, .momentum = momentum});
  }
}

TEST_P(OptimizerKernels, Adagrad) {
  check(AdagradRule{.lr = 0.1, .lr_decay = 0.1, .eps = 1e-10, .weight_decay = 0.1, .step = 3});
  check(AdagradRule{.lr = 0.1, .eps = 1e-10, .grad_factor = -2});
}

TEST_P(OptimizerKernels, Lion) {
  check(LionRule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1});
  check(LionRule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .grad_factor = -0.5});
}

INSTANTIATE_TEST_SUITE_P(Types, OptimizerKernels, testing::ValuesIn(type_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(OptimizerKernels, CenteredRmspropEqualsTheReference) {
  at::manual_seed(6);
  for (const double momentum : {0.0, 0.5}) {
    const RmspropRule rule{.lr = 0.01, .alpha = 0.9, .eps = 1e-8, .momentum = momentum, .centered = true};
    StepArrays fast(1000, {}, rule.states(), false);
    fast.state.back().narrow(0, 0, 1000).mul_(0.1);  // grad_avg, well below the root of square_avg
    fast.state.front().narrow(0, 0, 1000).add_(1);
    StepArrays reference = fast.clone();
    cpu::step(std::vector{fast.step(rule)}, {});
    ref::step(std::vector{reference.step(rule)}, {});
    for (size_t k = 0; k < fast.state.size(); ++k) {
      EXPECT_TRUE(at::allclose(fast.state[k], reference.state[k], 2e-6, 2e-6)) << k;
    }
    EXPECT_TRUE(at::allclose(fast.param, reference.param, 2e-6, 2e-6));
  }
}

TEST(OptimizerKernels, RoundToNearestEvenAndKeepNan) {
  // SGD with rate 0 writes each parameter back as it was read; with a master, as the master rounds.
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensor master = at::tensor({1.0f, 1.00390625f, 1.01171875f, 3.3e38f, nan, -inf, 1e-41f, -0.0f, 65520.0f});
  for (const auto& [type, scalar] : {std::pair{Type::bf16, at::kBFloat16}, std::pair{Type::f16, at::kHalf}}) {
    const Tensor p = at::zeros_like(master, scalar), g = at::zeros_like(master, scalar);
    StepTensor<SgdRule> t{.size = master.numel(), .param = p.mutable_data_ptr(), .grad = g.const_data_ptr()};
    const Tensor m = master.clone();
    t.master = m.mutable_data_ptr();
    cpu::step(std::vector{t}, {type, type, Type::f32});
    EXPECT_TRUE(at::allclose(p, master.to(scalar), 0, 0, /*equal_nan=*/true)) << p << master.to(scalar);
  }
}

TEST(OptimizerKernels, LionStandsStillWhereTheDirectionIsZero) {
  Tensor p = at::ones({3}), g = at::tensor({1.0f, 0.0f, -1.0f}), m = at::zeros({3});
  StepTensor<LionRule> t{.size = 3, .param = p.mutable_data_ptr(), .grad = g.const_data_ptr()};
  t.state[0] = m.mutable_data_ptr();
  t.rule = {.lr = 0.5, .beta1 = 0.9, .beta2 = 0.99};
  cpu::step(std::vector{t}, {});
  EXPECT_TRUE(at::equal(p, at::tensor({0.5f, 1.0f, 1.5f}))) << p;
}

}  // namespace bellows::kernels
