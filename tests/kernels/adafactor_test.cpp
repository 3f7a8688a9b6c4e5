#include "bellows/kernels/adafactor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace bellows::kernels {

namespace {

struct AdafactorArrays {
  at::Tensor param, grad, row, column, square, first;

  AdafactorArrays(at::IntArrayRef sizes, at::ScalarType type, bool factored, bool with_first) {
    const at::ScalarType state = type == at::kDouble ? at::kDouble : at::kFloat;
    param = at::randn(sizes, at::kDouble).to(type);
    grad = at::randn(sizes, at::kDouble).to(type);
    if (factored) {
      row = at::rand({sizes[0], sizes[1]}, state) + 0.1, column = at::rand({sizes[0], sizes[2]}, state) + 0.1;
    } else {
      square = at::rand(sizes, state) + 0.1;
    }
    if (with_first) first = at::randn(sizes, state) * 0.01;
  }
  std::vector<at::Tensor*> all() { return {&param, &row, &column, &square, &first}; }
  AdafactorArrays clone() const {
    AdafactorArrays copy = *this;
    for (at::Tensor* t : copy.all()) {
      if (t->defined()) *t = t->clone();
    }
    return copy;
  }
  AdafactorTensor step(const AdafactorRule& rule) const {
    const auto pointer = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
    const Type type = param.scalar_type() == at::kDouble     ? Type::f64
                      : param.scalar_type() == at::kBFloat16 ? Type::bf16
                                                             : Type::f32;
    return {param.size(0), param.size(1),   param.size(2),   type,           type, pointer(param), pointer(grad),
            pointer(row),  pointer(column), pointer(square), pointer(first), rule};
  }
};

}  // namespace

// Sums of up to 60000 squares in fp32, sixteen at a time, against sums in f64.
TEST(AdafactorKernel, EqualsTheReference) {
  at::manual_seed(12);
  for (const auto& [type, limit] :
       {std::pair{at::kFloat, 2e-5}, std::pair{at::kDouble, 1e-12}, std::pair{at::kBFloat16, 1e-2}}) {
    for (const bool factored : {true, false}) {
      for (const double beta1 : {0.0, 0.9}) {
        const AdafactorRule rule{.lr = 0.01,
                                 .scale_parameter = factored,
                                 .beta1 = beta1,
                                 .beta2 = 0.7,
                                 .eps1 = 1e-30,
                                 .eps2 = 1e-3,
                                 .clip_threshold = 0.9,
                                 .weight_decay = 0.1,
                                 .grad_factor = 0.5};
        std::vector<AdafactorArrays> fast, reference;
        std::vector<AdafactorTensor> fast_steps, reference_steps;
        for (const auto& sizes : std::vector<std::vector<int64_t>>{
                 {1, 1, 1}, {1, 1, 37}, {20, 3, 3}, {2, 100, 50}, {1, 40, 1500}, {1, 700, 220}, {1, 0, 4}}) {
          fast.emplace_back(sizes, type, factored, beta1 != 0);
          reference.push_back(fast.back().clone());
        }
        for (size_t i = 0; i < fast.size(); ++i)
          fast_steps.push_back(fast[i].step(rule)), reference_steps.push_back(reference[i].step(rule));
        adafactor_step(fast_steps);
        ref::adafactor_step(reference_steps);
        for (size_t i = 0; i < fast.size(); ++i) {
          const auto ours = fast[i].all(), theirs = reference[i].all();
          for (size_t k = 0; k < ours.size(); ++k) {
            if (!ours[k]->defined()) continue;
            const double bound = k == 0 ? limit : std::min(limit, 2e-5);
            EXPECT_TRUE(at::allclose(*ours[k], *theirs[k], bound, bound))
                << i << ", array " << k << ": " << (*ours[k] - *theirs[k]).abs().max();
          }
        }
      }
    }
  }
}

}  // namespace bellows::kernels
