#pragma once

#include <cstdint>
#include <memory>

namespace bellows::recompute {

namespace detail {
class BudgetPlan;
}

struct BudgetOptions {
  double fraction = -1;       ///< 0 … 1 of the bytes that the regions would hold without checkpoint()
  int64_t target_bytes = -1;  ///< or so many bytes; the first step, which measures, keeps nothing
};

/// What a budget did in the last whole step.
struct BudgetReport {
  int64_t activation_bytes = 0;  ///< what the regions would have held
  int64_t kept_bytes = 0;
  double operator_seconds = 0;  ///< of the operators of the first runs
  double kept_seconds = 0;      ///< of those whose outputs were kept: what the second runs need not compute
};

/// While the guard lives on a thread, regions of checkpoint() keep some of what they compute: the operators that cost
/// most time for a byte. Time and bytes of each operator are measured in every first run, so shapes may change.
///
/// A guard around many steps chooses over all regions of a step by what it measured in the one before; in its first
/// step, and in a guard of one step, each region is given the same share. Regions with a policy or budget of their own
/// follow these. What a policy says with `must_` holds under a budget, too.
/// Numerics: the bits do not depend on what is kept; under OpTap, as all selective regions (docs/tap-bits.md)
/// Cost:     one dispatch more and two readings of the clock for each operator of a region; on an accelerator a
///           synchronization, so that times are true. Within the first run of a region all of its outputs live
/// Threads:  sees the thread that makes it; make and destroy it on one thread
/// Throws:   c10::ValueError – a fraction outside 0 … 1, target_bytes below 0, both or none given
/// Ref:      torch._functorch.config.activation_memory_budget
class budget {
 public:
  explicit budget(double fraction);
  explicit budget(const BudgetOptions& options);
  ~budget();
  budget(const budget&) = delete;
  budget& operator=(const budget&) = delete;

  BudgetReport report() const;

 private:
  std::shared_ptr<detail::BudgetPlan> plan_;
};

}  // namespace bellows::recompute
