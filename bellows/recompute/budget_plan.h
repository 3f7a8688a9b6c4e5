#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "bellows/recompute/budget.h"
#include "bellows/recompute/region_trace.h"

namespace bellows::recompute::detail {

/// Throws: c10::ValueError – outside 0 … 1
void check_fraction(const char* who, double fraction);

/// What one region does with its calls, in its first run already.
struct RegionPlan {
  std::vector<Step> steps;
  int64_t activation_bytes = 0, kept_bytes = 0;  ///< when it was measured
  double operator_seconds = 0, kept_seconds = 0;
  bool measured = false;  ///< often enough: it need not be measured again
};

/// What a region found in its first run.
struct RegionFindings {
  std::shared_ptr<RegionTrace> trace;  ///< null: it went by its plan
  int64_t activation_bytes = 0;
  bool other_calls = false;  ///< than the plan's
};

/// What the regions of a budget guard know of each other. A region is known by its number in the step. The first steps
/// measure it; of the times that were measured the shortest count, so that noise does not choose. Then it follows its plan as
/// long as it calls the same operators.
/// Threads: safe
class BudgetPlan {
 public:
  explicit BudgetPlan(const BudgetOptions& options) : options_(options) {}

  /// A region begins. One that runs for the second time of one around it counts for nothing: it has no number.
  /// Params: held – inputs that it keeps as they are
  /// Returns: its number in the step
  size_t begin(const std::vector<at::Tensor>& held);
  /// What it is to do, or null: unknown yet.
  std::shared_ptr<const RegionPlan> plan_of(size_t number) const;
  /// The region has run, and goes by this plan. Without one its share of the budget is what it may keep.
  /// Returns: its plan if it has followed none
  std::shared_ptr<const RegionPlan> finish(size_t number, const RegionFindings& found);
  /// The same for a region that counts for nothing.
  std::shared_ptr<const RegionPlan> finish_uncounted(const RegionFindings& found) const;
  /// May a region that follows its plan keep so many bytes now? Then they count until they are released.
  bool reserve(int64_t bytes);
  void released(int64_t bytes);
  /// Leaving out calls failed: something reads memory past the operators.
  void never_skip(size_t number);
  /// A region needs its second run: the forward pass is over.
  void backward_begins();
  BudgetReport report() const;

 private:
  struct Region {
    std::shared_ptr<RegionTrace> trace;
    std::shared_ptr<const RegionPlan> plan;
    int64_t activation_bytes = 0;
    int times_measured = 0;
    bool never_skip = false;
  };
  int64_t target_of(int64_t activation_bytes) const;
  int64_t share_of(int64_t activation_bytes) const;
  void count(const RegionPlan& plan, int64_t activation_bytes);
  void plan_all();

  const BudgetOptions options_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;  ///< by number
  size_t begun_ = 0;             ///< in this step
  bool news_ = false;            ///< a region was measured in this step
  BudgetReport step_, last_;
  int64_t kept_now_ = 0;
};

/// The plan of one region that may keep so many bytes.
std::shared_ptr<const RegionPlan> plan_region(const RegionTrace& trace, const std::vector<char>& kept,
                                              int64_t activation_bytes);

/// One guard.
struct BudgetFrame {
  std::shared_ptr<BudgetPlan> plan;
  std::shared_ptr<BudgetFrame> outer;  ///< the guard around this one, or null
  std::atomic<bool> ended = false;     ///< it lives no more
};

/// The innermost guard on this thread, or null. Reads and writes.
std::shared_ptr<BudgetFrame>& current_budget();

}  // namespace bellows::recompute::detail
