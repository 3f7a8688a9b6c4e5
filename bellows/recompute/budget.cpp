#include "bellows/recompute/budget.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "bellows/core/log.h"
#include "bellows/recompute/budget_plan_impl.h"

namespace bellows::recompute {

namespace detail {

std::vector<bool> choose(const std::vector<Candidate>& candidates, int64_t room) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].worth() > candidates[b].worth(); });
  std::vector<bool> keep(candidates.size());
  for (const size_t i : order) {
    if (candidates[i].bytes > room) continue;
    keep[i] = true;
    room -= candidates[i].bytes;
  }
  return keep;
}

void check_fraction(const char* who, double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, who,
                    ": expected a fraction of the activations' bytes between 0 and ", "1, got ", fraction,
                    ". 0 keeps nothing, 1 as much as without checkpoint().");
}

int64_t BudgetPlan::target_of(int64_t activation_bytes) const {
  if (options_.target_bytes >= 0) return options_.target_bytes;
  return static_cast<int64_t>(options_.fraction * static_cast<double>(activation_bytes));
}

/// Of one region, when it is not known what the others are worth.
int64_t BudgetPlan::share_of(int64_t activation_bytes) const {
  if (options_.target_bytes < 0) return target_of(activation_bytes);
  if (last_.activation_bytes == 0) return 0;
  const double share = static_cast<double>(activation_bytes) / static_cast<double>(last_.activation_bytes);
  if (share >= 1) return options_.target_bytes;
  return static_cast<int64_t>(share * static_cast<double>(options_.target_bytes));
}

const BudgetPlan::Region* BudgetPlan::known(const std::vector<Candidate>& candidates) const {
  if (seen_.size() >= known_.size()) return nullptr;
  const Region& region = known_[seen_.size()];
  const auto same_bytes = [](const Candidate& a, const Candidate& b) { return a.bytes == b.bytes; };
  const bool same =
      std::equal(candidates.begin(), candidates.end(), region.candidates.begin(), region.candidates.end(), same_bytes);
  return same ? &region : nullptr;
}

std::vector<bool> BudgetPlan::choose_for_region(const std::vector<Candidate>& candidates, int64_t activation_bytes,
                                                bool counts) {
  const std::lock_guard lock(mutex_);
  const Region* plan = counts ? known(candidates) : nullptr;
  auto keep = plan ? plan->keep : choose(candidates, share_of(activation_bytes));
  int64_t room = last_.activation_bytes > 0 ? target_of(last_.activation_bytes) - kept_now_ : INT64_MAX;
  Region region{candidates, {}};
  for (size_t i = 0; i < keep.size(); ++i) {
    if (plan) region.candidates[i].seconds = std::min(candidates[i].seconds, plan->candidates[i].seconds);
    keep[i] = keep[i] && candidates[i].bytes <= room;
    if (keep[i]) room -= candidates[i].bytes, kept_now_ += candidates[i].bytes;
    if (!counts) continue;
    step_.operator_seconds += candidates[i].seconds;
    if (!keep[i]) continue;
    step_.kept_seconds += candidates[i].seconds;
    step_.kept_bytes += candidates[i].bytes;
  }
  if (counts) {
    step_.activation_bytes += activation_bytes;
    seen_.push_back(std::move(region));
  }
  return keep;
}

void BudgetPlan::released(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  kept_now_ -= bytes;
}

void BudgetPlan::backward_begins() {
  const std::lock_guard lock(mutex_);
  if (seen_.empty()) return;
  std::vector<Candidate> all;
  for (const Region& region : seen_) all.insert(all.end(), region.candidates.begin(), region.candidates.end());
  const auto keep = choose(all, target_of(step_.activation_bytes));
  auto next = keep.begin();
  for (Region& region : seen_) {
    const auto end = next + static_cast<ptrdiff_t>(region.candidates.size());
    region.keep.assign(next, end);
    next = end;
  }
  known_ = std::exchange(seen_, {});
  last_ = std::exchange(step_, {});
}

BudgetReport BudgetPlan::report() const {
  const std::lock_guard lock(mutex_);
  return seen_.empty() ? last_ : step_;
}

std::shared_ptr<BudgetPlan>& current_budget() {
  static thread_local std::shared_ptr<BudgetPlan> plan;
  return plan;
}

namespace {

BudgetOptions checked(const BudgetOptions& options) {
  const bool by_fraction = options.fraction != -1, by_bytes = options.target_bytes != -1;
  TORCH_CHECK_VALUE(by_fraction != by_bytes, "budget: expected a fraction or target_bytes, got ",
                    by_fraction ? "both" : "none of them", ".");
  if (by_fraction) check_fraction("budget", options.fraction);
  TORCH_CHECK_VALUE(by_fraction || options.target_bytes >= 0, "budget: expected target_bytes of at least 0, got ",
                    options.target_bytes, ".");
  return options;
}

std::shared_ptr<BudgetPlan> install_budget(const BudgetOptions& options) {
  return current_budget() = std::make_shared<BudgetPlan>(options, current_budget());
}

}  // namespace
}  // namespace detail

budget::budget(double fraction) {
  detail::check_fraction("budget", fraction);
  plan_ = detail::install_budget({.fraction = fraction});
}

budget::budget(const BudgetOptions& options) : plan_(detail::install_budget(detail::checked(options))) {}

budget::~budget() {
  plan_->ended = true;
  auto& current = detail::current_budget();
  if (current != plan_)
    log_error("budget: destroyed out of order, or on another thread than it was made on. ",
              "Destroy guards in the reverse order of their making, on the thread that made them.");
  while (current && current->ended) current = std::shared_ptr(current->outer);
}

BudgetReport budget::report() const {
  return plan_->report();
}

}  // namespace bellows::recompute
