#pragma once

#include <cstdint>

namespace bellows::kernels {

/// Element types that the optimizer kernels read and write.
enum class Type : uint8_t { f32, f64, bf16, f16 };

/// State in codes of so many bits with a scale a block (dynamic_map.h): for SGD, Adam without amsgrad, and Lion.
enum class LowBit : uint8_t { none, int8, int4 };

/// Element types of one call: either all f64, or any of the others. Arithmetic is in f64 or f32 accordingly. With a
/// master copy, `param` is what the rounded copy is written as.
struct StepTypes {
  Type param = Type::f32, grad = Type::f32, state = Type::f32;
  LowBit low_bit = LowBit::none;  ///< takes the place of `state`
  bool stochastic = false;        ///< bf16 parameters are rounded up or down at random (stochastic_round.h)
  friend bool operator==(const StepTypes&, const StepTypes&) = default;
};

// One update rule each, as a function of a parameter p, its gradient g and `states()` numbers of state. `grad_factor`
// multiplies each gradient as it is read: 1 / loss scale, negative to maximize.

/// State: momentum_buffer, if there is momentum.
struct SgdRule {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0, grad_factor = 1;
  bool nesterov = false;
  bool first = false;  ///< the buffer holds nothing yet: it becomes the gradient
  int states() const { return momentum != 0; }
};

/// State: exp_avg, exp_avg_sq and, for amsgrad, max_exp_avg_sq.
struct AdamRule {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, grad_factor = 1;
  double step = 1;         ///< number of this step, from 1
  bool decoupled = false;  ///< AdamW: the decay shrinks the weight and stays out of the gradient
  bool amsgrad = false;
  int states() const { return amsgrad ? 3 : 2; }
};

/// State: square_avg, then momentum_buffer if there is momentum, then grad_avg if centered.
struct RmspropRule {
  double lr = 0, alpha = 0, eps = 0, weight_decay = 0, momentum = 0, grad_factor = 1;
  bool centered = false;
  int states() const { return 1 + (momentum != 0) + centered; }
};

/// State: sum.
struct AdagradRule {
  double lr = 0, lr_decay = 0, eps = 0, weight_decay = 0, grad_factor = 1;
  double step = 1;  ///< number of this step, from 1
  int states() const { return 1; }
};

/// State: exp_avg.
struct LionRule {
  double lr = 0, beta1 = 0, beta2 = 0, weight_decay = 0, grad_factor = 1;
  int states() const { return 1; }
};

/// One tensor's step: `size` elements, dense, each array in the same order.
template <class Rule>
struct StepTensor {
  int64_t size = 0;
  void* param = nullptr;
  const void* grad = nullptr;
  void* master = nullptr;  ///< f32; where it is given, it is what is updated, and `param` becomes its rounded copy
  void* state[3] = {};
  float* scale[2] = {};  ///< low-bit: of each block of state; written anew by the step. An element whose new state
                         ///< would not be finite keeps state and parameter: it must not spoil its block
  uint64_t rounding_seed = 0;
  Rule rule{};
  const float* device_step =
      nullptr;  ///< CUDA only: takes the place of the rule's `step`, so that the host need not wait
};

}  // namespace bellows::kernels
