#include "bellows/kernels/layerwise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace bellows::kernels {

namespace {

struct LayerwiseArrays {
  at::Tensor param, grad, first, second;

  LayerwiseArrays(int64_t size, at::ScalarType type, bool one_second) {
    const at::ScalarType state = type == at::kDouble ? at::kDouble : at::kFloat;
    param = at::randn({size}, at::kDouble).to(type);
    grad = at::randn({size}, at::kDouble).to(type);
    first = at::randn({size}, state) * 0.01;
    second = one_second ? at::rand({}, state) + 1 : at::rand({size}, state) + 0.1;
  }
  LayerwiseArrays clone() const {
    LayerwiseArrays copy = *this;
    for (at::Tensor* t : {&copy.param, &copy.first, &copy.second}) *t = t->clone();
    return copy;
  }
  template <class Rule>
  LayerwiseTensor<Rule> step(const Rule& rule) const {
    const Type type = param.scalar_type() == at::kDouble     ? Type::f64
                      : param.scalar_type() == at::kBFloat16 ? Type::bf16
                                                             : Type::f32;
    return {.size = param.numel(),
            .param_type = type,
            .grad_type = type,
            .param = param.mutable_data_ptr(),
            .grad = grad.const_data_ptr(),
            .first = first.mutable_data_ptr(),
            .second = second.mutable_data_ptr(),
            .rule = rule};
  }
};

// Sums of up to 70000 squares in fp32, sixteen at a time, against sums in f64.
template <class Rule>
void expect_reference(const Rule& rule, bool one_second) {
  at::manual_seed(21);
  for (const auto& [type, limit] :
       {std::pair{at::kFloat, 2e-5}, std::pair{at::kDouble, 1e-12}, std::pair{at::kBFloat16, 1e-2}}) {
    std::vector<LayerwiseArrays> fast, reference;
    std::vector<LayerwiseTensor<Rule>> fast_steps, reference_steps;
    for (const int64_t size : {1, 37, 16384, 0, 70001}) {
      fast.emplace_back(size, type, one_second);
      reference.push_back(fast.back().clone());
    }
    for (size_t i = 0; i < fast.size(); ++i)
      fast_steps.push_back(fast[i].step(rule)), reference_steps.push_back(reference[i].step(rule));
    layerwise_step(std::span<const LayerwiseTensor<Rule>>(fast_steps));
    ref::layerwise_step(std::span<const LayerwiseTensor<Rule>>(reference_steps));
    for (size_t i = 0; i < fast.size(); ++i) {
      if (fast[i].param.numel() == 0) continue;
      EXPECT_TRUE(at::allclose(fast[i].param, reference[i].param, limit, limit))
          << i << ": " << (fast[i].param - reference[i].param).abs().max();
      const double bound = std::min(limit, 2e-5);
      EXPECT_TRUE(at::allclose(fast[i].first, reference[i].first, bound, bound)) << i;
      EXPECT_TRUE(at::allclose(fast[i].second, reference[i].second, bound, bound)) << i;
    }
  }
}

}  // namespace

TEST(LayerwiseKernel, LambEqualsTheReference) {
  const LambRule rule{.lr = 0.01,
                      .beta1 = 0.9,
                      .beta2 = 0.99,
                      .eps = 1e-6,
                      .weight_decay = 0.1,
                      .grad_factor = 0.5,
                      .new1 = 0.1,
                      .correction1 = 0.3,
                      .correction2 = 0.2};
  for (const bool decoupled : {true, false}) {
    for (const bool adapts : {true, false}) {
      LambRule variant = rule;
      variant.decoupled = decoupled, variant.adapts = adapts;
      expect_reference(variant, /*one_second=*/false);
    }
  }
}

TEST(LayerwiseKernel, NovogradEqualsTheReference) {
  const NovogradRule rule{.lr = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.7,
                          .eps = 1e-6,
                          .weight_decay = 0.1,
                          .grad_factor = -0.5,
                          .new1 = 0.1,
                          .correction1 = 0.3,
                          .correction2 = 0.2};
  for (int variant = 0; variant < 8; ++variant) {
    NovogradRule one = rule;
    one.first = variant & 1, one.inside_moment = variant & 2, one.max_norm = variant & 4;
    expect_reference(one, /*one_second=*/true);
  }
}

// One NaN must reach the norm, as in libtorch's operators, wherever it is.
TEST(LayerwiseKernel, TheLargestValueOfNanIsNan) {
  for (const int64_t place : {0, 20000, 40000}) {
    LayerwiseArrays arrays(40001, at::kFloat, /*one_second=*/true);
    arrays.grad.index_put_({at::tensor(place)}, at::scalar_tensor(NAN));
    const auto step = arrays.step(NovogradRule{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.5, .max_norm = true});
    layerwise_step(std::span(&step, 1));
    EXPECT_TRUE(std::isnan(arrays.second.item<double>())) << place;
  }
}

}  // namespace bellows::kernels
