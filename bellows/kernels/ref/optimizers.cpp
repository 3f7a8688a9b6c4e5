#include "bellows/kernels/ref/optimizers.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "bellows/kernels/optimizer_formula_impl.h"

namespace bellows::kernels::ref {

namespace {

template <class T>
T load(const void* data, Type type, int64_t i) {
  switch (type) {
    case Type::f64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case Type::bf16:
      return static_cast<float>(static_cast<const c10::BFloat16*>(data)[i]);
    case Type::f16:
      return static_cast<float>(static_cast<const c10::Half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

template <class T>
void store(void* data, Type type, int64_t i, T value) {
  switch (type) {
    case Type::f64:
      static_cast<double*>(data)[i] = value;
      break;
    case Type::bf16:
      static_cast<c10::BFloat16*>(data)[i] = c10::BFloat16(static_cast<float>(value));
      break;
    case Type::f16:
      static_cast<c10::Half*>(data)[i] = c10::Half(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

template <class T, class Rule>
void step_one(const StepTensor<Rule>& t, StepTypes types) {
  const Formula<T, Rule> formula(t.rule);
  const int states = t.rule.states();
  for (int64_t i = 0; i < t.size; ++i) {
    T p = t.master ? load<T>(t.master, Type::f32, i) : load<T>(t.param, types.param, i);
    T s[3] = {};
    for (int k = 0; k < states; ++k) s[k] = load<T>(t.state[k], types.state, i);
    formula(p, load<T>(t.grad, types.grad, i), s);
    for (int k = 0; k < states; ++k) store(t.state[k], types.state, i, s[k]);
    if (t.master) store(t.master, Type::f32, i, p);
    store(t.param, types.param, i, p);
  }
}

template <class Rule>
void step_all(std::span<const StepTensor<Rule>> tensors, StepTypes types) {
  for (const StepTensor<Rule>& t : tensors) {
    if (types.param == Type::f64) {
      step_one<double>(t, types);
    } else {
      step_one<float>(t, types);
    }
  }
}

}  // namespace

void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}

}  // namespace bellows::kernels::ref
