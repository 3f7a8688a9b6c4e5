#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "bellows/recompute/budget.h"
#include "bellows/recompute/region_trace.h"

namespace bellows::recompute::detail {

/// Throws: c10::ValueError if `fraction` is outside 0 … 1
void check_fraction(const char* who, double fraction);

/// The actions of one region for its operator calls. The first run follows them, too.
struct RegionPlan {
  std::vector<Step> steps;
  int64_t activation_bytes = 0, kept_bytes = 0;  ///< at the time of measurement
  double operator_seconds = 0, kept_seconds = 0;
  bool measured = false;  ///< measured often enough
};

/// The findings of a region's first run.
struct RegionFindings {
  std::shared_ptr<RegionTrace> trace;  ///< null if the region followed its plan
  int64_t activation_bytes = 0;
  bool other_calls = false;  ///< the region called other operators than its plan
};

/// The plan of all regions under a budget guard. A region is identified by its number within the step. The first steps
/// measure it. The shortest measured times are used, to reduce noise. After that, the region follows its plan as long
/// as it calls the same operators.
/// Threads: safe
class BudgetPlan {
 public:
  explicit BudgetPlan(const BudgetOptions& options) : options_(options) {}

  /// Begins a region. A region inside the second run of a surrounding region is not counted and has no number.
  /// Params:  held – inputs that the region keeps unchanged
  /// Returns: the region's number within the step
  size_t begin(const std::vector<at::Tensor>& held);
  /// Returns: the plan of the region, or null if there is none yet
  std::shared_ptr<const RegionPlan> plan_of(size_t number) const;
  /// Ends the first run of a region. A region without a plan gets its share of the budget.
  /// Returns: the plan, or null if the region has followed one already
  std::shared_ptr<const RegionPlan> finish(size_t number, const RegionFindings& found);
  /// The same for a region that is not counted.
  std::shared_ptr<const RegionPlan> finish_uncounted(const RegionFindings& found) const;
  /// Reserves `bytes` of the budget until released().
  /// Returns: false if this would exceed `target_bytes`
  bool reserve(int64_t bytes);
  void released(int64_t bytes);
  /// Turns off skipping for a region whose second run failed, because something reads memory without calling operators.
  void never_skip(size_t number);
  /// Called when a region needs its second run, which means that the forward pass has ended.
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
  std::vector<Region> regions_;  ///< by region number
  size_t begun_ = 0;             ///< regions that began in this step
  bool news_ = false;            ///< true if a region was measured in this step
  BudgetReport step_, last_;
  int64_t kept_now_ = 0;
};

/// Makes the plan of a region that keeps the storages marked in `kept`.
std::shared_ptr<const RegionPlan> plan_region(const RegionTrace& trace, const std::vector<char>& kept,
                                              int64_t activation_bytes);

/// The state of one guard.
struct BudgetFrame {
  std::shared_ptr<BudgetPlan> plan;
  std::shared_ptr<BudgetFrame> outer;  ///< the surrounding guard, or null
  std::atomic<bool> ended = false;     ///< true if the guard was destroyed
};

/// Returns: a reference to this thread's innermost guard, or null. Assign to it to change the guard.
std::shared_ptr<BudgetFrame>& current_budget();

}  // namespace bellows::recompute::detail
