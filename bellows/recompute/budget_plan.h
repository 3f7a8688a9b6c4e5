#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/recompute/budget.h"
#include "bellows/recompute/region_trace.h"

namespace bellows::recompute::detail {

/// Throws: c10::ValueError if `fraction` is outside 0 … 1
void check_fraction(const char* who, double fraction);

/// For each operator call of a region (one call of a checkpointed function), the action of the second run. The first
/// run uses this plan to decide which outputs to keep.
struct RegionPlan {
  std::vector<Step> steps;
  int64_t activation_bytes = 0, kept_bytes = 0;  ///< as measured in the first run
  double operator_seconds = 0, kept_seconds = 0;
  bool measured = false;  ///< whether the region was measured in enough steps
};

/// The results of a region's first run.
struct RegionFindings {
  std::shared_ptr<RegionTrace> trace;  ///< null if the region followed its plan
  int64_t activation_bytes = 0;
  bool other_calls = false;  ///< whether the region called different operators than its plan contains
};

/// The plan of all regions under a budget guard. A region is identified by its number within the step. Each region is
/// measured in the first steps, and the shortest time of each operator is used, which reduces noise. After that, the
/// region follows its plan until it calls different operators.
/// Threads: thread-safe
class BudgetPlan {
 public:
  explicit BudgetPlan(const BudgetOptions& options) : options_(options) {}

  /// Begins a region. Do not call this function for a region inside the second run of a surrounding region, because
  /// such a region has no number.
  /// Params:  held – inputs that the region keeps unchanged
  /// Returns: the region's number within the step
  size_t begin(const std::vector<at::Tensor>& held);
  /// Returns the plan of the region, or null if it has no plan yet.
  std::shared_ptr<const RegionPlan> plan_of(size_t number) const;
  /// Ends the first run of a region. If the region has no plan yet, it gets a plan for its share of the budget.
  /// Returns: the plan, or null if the region already followed a plan in its first run
  std::shared_ptr<const RegionPlan> finish(size_t number, const RegionFindings& found);
  /// Like finish(), for a region without a number.
  std::shared_ptr<const RegionPlan> finish_uncounted(const RegionFindings& found) const;
  /// Reserves `bytes` of the budget until released() is called.
  /// Returns: false if the reserved bytes would then exceed `target_bytes`
  bool reserve(int64_t bytes);
  void released(int64_t bytes);
  /// Makes sure that the second run of this region skips no operators. Call this function if a second run failed,
  /// because the code in the region may read memory without calling operators.
  void never_skip(size_t number);
  /// Call this function when a region needs its second run. This shows that the forward pass has ended.
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
  int64_t share_of(int64_t activation_bytes) const BELLOWS_REQUIRES(mutex_);
  void count(const RegionPlan& plan, int64_t activation_bytes) BELLOWS_REQUIRES(mutex_);
  void plan_all() BELLOWS_REQUIRES(mutex_);

  const BudgetOptions options_;
  mutable Mutex mutex_;
  std::vector<Region> regions_ BELLOWS_GUARDED_BY(mutex_);  ///< indexed by region number
  size_t begun_ BELLOWS_GUARDED_BY(mutex_) = 0;             ///< number of regions that began in this step
  bool news_ BELLOWS_GUARDED_BY(mutex_) = false;            ///< whether a region was measured in this step
  BudgetReport step_ BELLOWS_GUARDED_BY(mutex_);
  BudgetReport last_ BELLOWS_GUARDED_BY(mutex_);
  int64_t kept_now_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

/// Makes the plan of a region. `kept` marks the storages that the region keeps.
std::shared_ptr<const RegionPlan> plan_region(const RegionTrace& trace, const std::vector<char>& kept,
                                              int64_t activation_bytes);

/// The state of one guard.
struct BudgetFrame {
  std::shared_ptr<BudgetPlan> plan;
  std::shared_ptr<BudgetFrame> outer;  ///< the surrounding guard, or null
  std::atomic<bool> ended = false;     ///< whether the guard was destroyed
};

/// Returns a reference to this thread's innermost guard, which is null if there is no guard. Assign to the reference to
/// change the guard.
std::shared_ptr<BudgetFrame>& current_budget();

}  // namespace bellows::recompute::detail
