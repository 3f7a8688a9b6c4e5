#pragma once

#include <cstdint>
#include <memory>

namespace bellows::recompute {

namespace detail {
class BudgetPlan;
struct BudgetFrame;
}  // namespace detail

struct BudgetOptions {
  /// Fraction, from 0 to 1, of the activation bytes that would be needed without checkpointing. Set either `fraction`
  /// or `target_bytes`.
  double fraction = -1;
  /// Number of activation bytes that may be kept. In the first step, Bellows only measures the outputs and keeps none
  /// of them.
  int64_t target_bytes = -1;
};

/// Statistics of the last step. During a forward pass, they describe the current step so far.
struct BudgetReport {
  int64_t activation_bytes = 0;  ///< activation bytes without checkpointing
  int64_t kept_bytes = 0;        ///< size of the kept outputs, without the inputs of the checkpointed calls
  double operator_seconds = 0;   ///< measured time of the operators in the first runs
  /// Time of the operators that the second runs omit, because their outputs are kept or because backward does not need
  /// them.
  double kept_seconds = 0;
};

/// Measurements and a plan that several budget guards share. Each guard continues where the previous guard ended.
class BudgetPlanner {
 public:
  /// Throws: c10::ValueError under the same conditions as BudgetGuard
  explicit BudgetPlanner(const BudgetOptions& options);
  BudgetReport report() const;

 private:
  friend class BudgetGuard;
  std::shared_ptr<detail::BudgetPlan> plan_;
};

/// While this guard exists on a thread, checkpointed calls keep the operator outputs that save the most time in their
/// second runs. The second runs also skip operators whose results backward does not need.
///
/// Use one guard around many steps, or several guards with the same planner. Bellows then measures each operator in the
/// first three steps, makes a plan for all calls of a step, and follows this plan. If a checkpointed call runs
/// different operators than before, it is measured again. Tensor sizes may change between steps. In the first step, and
/// in a guard that covers only one step, each call keeps the same fraction of its activations. A tensor that is also
/// the input of a later checkpointed call is stored only once. Calls that have their own policy or budget ignore the
/// guard.
/// Numerics: results do not depend on which tensors are kept. As with a policy, a few operators round differently;
///           docs/tap-bits.md lists them.
/// Cost:     one more dispatch per operator of a checkpointed call. While a call is measured, Bellows reads the clock
///           twice per operator and keeps all outputs until the call ends. On an accelerator, Bellows also synchronizes
///           the device, so that the times are correct.
/// Threads:  affects the thread that creates the guard; create and destroy it on the same thread
/// Throws:   c10::ValueError if `fraction` is outside 0 … 1, if `target_bytes` is negative, or if the two options are
///           both set or both not set
/// Ref:      torch._functorch.config.activation_memory_budget
class BudgetGuard {
 public:
  explicit BudgetGuard(double fraction);
  explicit BudgetGuard(const BudgetOptions& options);
  explicit BudgetGuard(const BudgetPlanner& planner);
  ~BudgetGuard();
  BudgetGuard(const BudgetGuard&) = delete;
  BudgetGuard& operator=(const BudgetGuard&) = delete;

  BudgetReport report() const;

 private:
  std::shared_ptr<detail::BudgetFrame> frame_;
};

}  // namespace bellows::recompute
