#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bellows/recompute/budget.h"

namespace bellows::recompute::detail {

/// What keeping one operator's outputs costs and saves.
struct Candidate {
  int64_t bytes = 0;
  double seconds = 0;
  double worth() const { return seconds / static_cast<double>(bytes > 0 ? bytes : 1); }
};

/// Which candidates to keep within `room` bytes: by time per byte, each that still fits.
std::vector<bool> choose(const std::vector<Candidate>& candidates, int64_t room);

/// Throws: c10::ValueError – outside 0 … 1
void check_fraction(const char* who, double fraction);

/// What the regions of a budget guard know of each other. A region is known by its number in the step and by the bytes of its
/// candidates; of the times that were measured for it the shortest count, so that noise does not choose.
/// Threads: safe
class BudgetPlan {
 public:
  explicit BudgetPlan(const BudgetOptions& options, std::shared_ptr<BudgetPlan> around = nullptr)
      : outer(std::move(around)), options_(options) {}

  const std::shared_ptr<BudgetPlan> outer;  ///< of the guard around this one, or null
  std::atomic<bool> ended = false;          ///< the guard lives no more

  /// Which of a region's candidates to keep. A region that runs for the second time of one around it counts for nothing.
  std::vector<bool> choose_for_region(const std::vector<Candidate>& candidates, int64_t activation_bytes, bool counts);
  /// Bytes that a region keeps no longer.
  void released(int64_t bytes);
  /// A region needs its second run: the forward pass is over.
  void backward_begins();
  BudgetReport report() const;

 private:
  struct Region {
    std::vector<Candidate> candidates;
    std::vector<bool> keep;
  };
  int64_t target_of(int64_t activation_bytes) const;
  int64_t share_of(int64_t activation_bytes) const;
  const Region* known(const std::vector<Candidate>& candidates) const;

  const BudgetOptions options_;
  mutable std::mutex mutex_;
  std::vector<Region> known_;  ///< from the step before
  std::vector<Region> seen_;   ///< in this step
  BudgetReport step_, last_;
  int64_t kept_now_ = 0;
};

/// The plan of the innermost guard on this thread, or null. Reads and writes.
std::shared_ptr<BudgetPlan>& current_budget();

}  // namespace bellows::recompute::detail
