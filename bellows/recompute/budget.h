#pragma once

#include <cstdint>
#include <memory>

namespace bellows::recompute {

namespace detail {
class BudgetPlan;
struct BudgetFrame;
}  // namespace detail

struct BudgetOptions {
  double fraction = -1;       ///< 0 … 1 of the bytes that the regions would hold without checkpoint()
  int64_t target_bytes = -1;  ///< or so many bytes; the first step, which measures, keeps nothing
};

/// What a budget did in the last whole step.
struct BudgetReport {
  int64_t activation_bytes = 0;  ///< what the regions would have held
  int64_t kept_bytes = 0;        ///< beside the regions' inputs
  double operator_seconds = 0;   ///< of the operators of the first runs, when they were measured
  double kept_seconds = 0;       ///< of those that the second runs leave out: kept, or needed by nobody
};

/// What budget guards have measured and planned, for guards that come and go: each goes on where the one before ended.
class BudgetPlanner {
 public:
  /// Throws: c10::ValueError – as budget
  explicit BudgetPlanner(const BudgetOptions& options);
  BudgetReport report() const;

 private:
  friend class budget;
  std::shared_ptr<detail::BudgetPlan> plan_;
};

/// While the guard lives on a thread, regions of checkpoint() keep some of what they compute: that which saves most time
/// in their second runs. These leave out, too, what backward needs nothing of.
///
/// A guard around many steps, or guards with one planner, measure each operator in the first three steps, choose over all
/// regions of a step, and then go by that plan; a region that calls other operators than before is measured again. Sizes
/// may change. In the first step, and in a guard of one step, each region is given the same share. What the next region
/// has as its input is kept by both for the price of one. Regions with a policy or budget of their own follow these.
/// Numerics: the bits do not depend on what is kept; under OpTap, as all selective regions (docs/tap-bits.md)
/// Cost:     one dispatch more for each operator of a region. In a region that is measured two readings of the clock for
///           each, on an accelerator a synchronization, so that times are true, and all of its outputs live until it ends
/// Threads:  sees the thread that makes it; make and destroy it on one thread
/// Throws:   c10::ValueError – a fraction outside 0 … 1, target_bytes below 0, both or none given
/// Ref:      torch._functorch.config.activation_memory_budget
class budget {
 public:
  explicit budget(double fraction);
  explicit budget(const BudgetOptions& options);
  explicit budget(const BudgetPlanner& planner);
  ~budget();
  budget(const budget&) = delete;
  budget& operator=(const budget&) = delete;

  BudgetReport report() const;

 private:
  std::shared_ptr<detail::BudgetFrame> frame_;
};

}  // namespace bellows::recompute
