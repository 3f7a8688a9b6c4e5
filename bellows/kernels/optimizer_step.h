#pragma once

#include <cstdint>

namespace bellows::kernels {

/// Element types that the optimizer kernels read and write.
enum class Type : uint8_t { f32, f64, bf16, f16 };

/// State in 8-bit or 4-bit codes with one scale per block (dynamic_map.h). SGD, Adam without amsgrad, and Lion support
/// it.
enum class LowBit : uint8_t { none, int8, int4 };

/// Element types of one call. Either all types are f64, or none is. Arithmetic is in f64 in the first case and in f32
/// in the second. With master weights, `param` is the type of their rounded copy.
struct StepTypes {
  Type param = Type::f32, grad = Type::f32, state = Type::f32;
  LowBit low_bit = LowBit::none;  ///< replaces `state`
  bool stochastic = false;        ///< round bf16 parameters stochastically (stochastic_round.h)
  friend bool operator==(const StepTypes&, const StepTypes&) = default;
};

// Each update rule is a function of a parameter p, the gradient g of p, and `states()` state values. Each gradient is
// multiplied by `grad_factor` when it is read. This factor is 1 / loss scale. It is negative if the optimizer maximizes
// the objective.

/// State: momentum_buffer if momentum is not 0.
struct SgdRule {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0, grad_factor = 1;
  bool nesterov = false;
  bool first = false;  ///< the buffer is empty; the step sets it to the gradient
  int states() const { return momentum != 0; }
};

/// State: exp_avg and exp_avg_sq. With amsgrad, also max_exp_avg_sq.
struct AdamRule {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, grad_factor = 1;
  double step = 1;         ///< number of this step, from 1
  bool decoupled = false;  ///< AdamW: weight decay reduces the weight directly and is not added to the gradient
  bool amsgrad = false;
  int states() const { return amsgrad ? 3 : 2; }
};

/// State: square_avg, followed by momentum_buffer if momentum is not 0, and grad_avg if centered.
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

/// Arguments for one step of one tensor. All arrays have `size` dense elements in the same order.
template <class Rule>
struct StepTensor {
  int64_t size = 0;
  void* param = nullptr;
  const void* grad = nullptr;
  void* master = nullptr;  ///< f32 master weights; if not null, the step updates them and writes their rounded copy
                           ///< to `param`
  void* state[3] = {};
  /// Scales of the blocks of each low-bit state tensor. The step overwrites them. If the new state of an element would
  /// not be finite, the element's state and parameter stay unchanged. This protects the other elements of its block.
  float* scale[2] = {};
  uint64_t rounding_seed = 0;
  Rule rule{};
  const float* device_step = nullptr;  ///< only for CUDA: replaces the rule's `step` without a host synchronization
};

}  // namespace bellows::kernels
