#pragma once

#include <cstdint>
#include <memory>

namespace bellows::recompute {

namespace detail {
class BudgetPlan;
struct BudgetFrame;
}  // namespace detail

struct BudgetOptions {
  double fraction = -1;       ///< 0 … 1: fraction of the activation bytes without checkpointing
  int64_t target_bytes = -1;  ///< or a number of bytes; the first step only measures and keeps nothing
};

/// Statistics of the last step. During a forward pass: of the current step so far.
struct BudgetReport {
  int64_t activation_bytes = 0;  ///< activation bytes without checkpointing
  int64_t kept_bytes = 0;        ///< not counting the inputs of the checkpointed calls
  double operator_seconds = 0;   ///< measured time of the operators of the first runs
  /// Time of the operators that the second runs omit: their outputs are kept, or backward does not need them
  double kept_seconds = 0;
};

/// Measurements and plan that several budget guards share: each guard continues where the previous one ended.
class BudgetPlanner {
 public:
  /// Throws: c10::ValueError as BudgetGuard
  explicit BudgetPlanner(const BudgetOptions& options);
  BudgetReport report() const;

 private:
  friend class BudgetGuard;
  std::shared_ptr<detail::BudgetPlan> plan_;
};

/// While the guard lives on a thread, checkpointed calls keep the operator outputs that save the most time in their
/// second runs. The second runs also skip operators whose results backward does not need.
///
/// A guard around many steps, or several guards with one planner, measure each operator in the first three steps. They
/// choose over all calls of a step and then follow this plan. A checkpointed call that runs other operators than before
/// is measured again. Sizes may change. In the first step, and under a guard of one step, each call keeps the same
/// fraction of its activations. A tensor that is also the input of a later checkpointed call is stored only once. Calls
/// with a policy or budget of their own use those instead.
/// Numerics: results do not depend on which tensors are kept. As with a policy, docs/tap-bits.md lists the operators
///           that round differently.
/// Cost:     one more dispatch per operator of a checkpointed call. While a call is measured, it reads the clock twice
///           per operator and keeps all of its outputs until it ends. On an accelerator it also synchronizes, so that
///           the times are correct.
/// Threads:  affects the thread that creates it; create and destroy the guard on the same thread
/// Throws:   c10::ValueError if `fraction` is outside 0 … 1, if `target_bytes` is negative, or unless exactly one of
///           them is set
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
