#include "bellows/recompute/budget.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bellows/core/log.h"
#include "bellows/recompute/budget_plan.h"
#include "bellows/recompute/choose.h"

namespace bellows::recompute {

namespace detail {

namespace {

constexpr int steps_measured = 3;

}  // namespace

void check_fraction(const char* who, double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, who,
                    ": expected a fraction of the activations' bytes between 0 and ", "1, got ", fraction,
                    ". 0 keeps no activations, and 1 keeps the same activations as without checkpoint().");
}

std::shared_ptr<const RegionPlan> plan_region(const RegionTrace& trace, const std::vector<char>& kept,
                                              int64_t activation_bytes) {
  auto plan = std::make_shared<RegionPlan>();
  plan->steps = trace.steps(kept);
  plan->activation_bytes = activation_bytes;
  for (const size_t i : c10::irange(kept.size())) plan->kept_bytes += kept[i] ? trace.bytes(i) : 0;
  plan->operator_seconds = trace.seconds();
  plan->kept_seconds = plan->operator_seconds - trace.seconds_again(kept);
  return plan;
}

int64_t BudgetPlan::target_of(int64_t activation_bytes) const {
  if (options_.target_bytes >= 0) return options_.target_bytes;
  return static_cast<int64_t>(options_.fraction * static_cast<double>(activation_bytes));
}

/// The share of one region while the value of the other regions is unknown.
int64_t BudgetPlan::share_of(int64_t activation_bytes) const {
  if (options_.target_bytes < 0) return target_of(activation_bytes);
  if (last_.activation_bytes == 0) return 0;
  const double share = static_cast<double>(activation_bytes) / static_cast<double>(last_.activation_bytes);
  const int64_t rest = std::max<int64_t>(0, options_.target_bytes - kept_now_);
  if (share >= 1) return rest;
  return std::min(rest, static_cast<int64_t>(share * static_cast<double>(options_.target_bytes)));
}

size_t BudgetPlan::begin(const std::vector<at::Tensor>& held) {
  const MutexLock lock(mutex_);
  for (const at::Tensor& tensor : held) {
    for (const size_t i : c10::irange(std::min(begun_, regions_.size()))) {
      RegionTrace* const trace = regions_[i].trace.get();
      const int32_t made = trace ? trace->made(tensor.storage().unsafeGetStorageImpl()) : -1;
      if (made >= 0) trace->lives_anyway(made);
    }
  }
  const size_t number = begun_++;
  if (number >= regions_.size()) regions_.resize(number + 1);
  return number;
}

std::shared_ptr<const RegionPlan> BudgetPlan::plan_of(size_t number) const {
  const MutexLock lock(mutex_);
  return regions_[number].plan;
}

void BudgetPlan::count(const RegionPlan& plan, int64_t activation_bytes) {
  const double grown = plan.activation_bytes > 0
                           ? static_cast<double>(activation_bytes) / static_cast<double>(plan.activation_bytes)
                           : 1;
  step_.activation_bytes += activation_bytes;
  step_.kept_bytes += static_cast<int64_t>(grown * static_cast<double>(plan.kept_bytes));
  step_.operator_seconds += plan.operator_seconds;
  step_.kept_seconds += plan.kept_seconds;
}

std::shared_ptr<const RegionPlan> BudgetPlan::finish(size_t number, const RegionFindings& found) {
  const MutexLock lock(mutex_);
  if (number >= regions_.size()) return nullptr;
  Region& region = regions_[number];
  region.activation_bytes = found.activation_bytes;
  if (!found.trace) {
    if (region.plan) count(*region.plan, found.activation_bytes);
    if (found.other_calls) region = {.never_skip = region.never_skip};
    return nullptr;
  }
  RegionTrace& trace = *found.trace;
  news_ = true;
  if (region.trace && region.trace->same_calls(trace)) {
    trace.take_shorter_times(*region.trace);
    for (const size_t i : c10::irange(trace.storages())) {
      if (region.trace->bytes(i) == 0) trace.lives_anyway(static_cast<int32_t>(i));
    }
    ++region.times_measured;
  } else {
    region.plan = nullptr;
    region.times_measured = 1;
  }
  if (region.never_skip) trace.never_skip();
  region.trace = found.trace;
  auto plan = region.plan;
  if (!plan) {
    const auto kept = choose({&trace}, share_of(found.activation_bytes)).front();
    plan = plan_region(trace, kept, found.activation_bytes);
  }
  count(*plan, found.activation_bytes);
  return plan;
}

std::shared_ptr<const RegionPlan> BudgetPlan::finish_uncounted(const RegionFindings& found) const {
  const MutexLock lock(mutex_);
  const auto kept = choose({found.trace.get()}, share_of(found.activation_bytes)).front();
  return plan_region(*found.trace, kept, found.activation_bytes);
}

bool BudgetPlan::reserve(int64_t bytes) {
  const MutexLock lock(mutex_);
  if (options_.target_bytes >= 0 && bytes > options_.target_bytes - kept_now_) return false;
  kept_now_ += bytes;
  return true;
}

void BudgetPlan::released(int64_t bytes) {
  const MutexLock lock(mutex_);
  kept_now_ -= bytes;
}

void BudgetPlan::never_skip(size_t number) {
  const MutexLock lock(mutex_);
  if (number >= regions_.size() || regions_[number].never_skip) return;
  regions_[number].never_skip = true;
  if (regions_[number].trace) regions_[number].trace->never_skip();
  plan_all();
}

void BudgetPlan::plan_all() {
  std::vector<const RegionTrace*> traces;
  int64_t activation_bytes = 0;
  for (Region& region : regions_) {
    if (!region.trace) continue;
    traces.push_back(region.trace.get());
    activation_bytes += region.activation_bytes;
  }
  const auto kept = choose(traces, target_of(activation_bytes));
  for (auto next = kept.begin(); Region & region : regions_) {
    if (!region.trace) continue;
    auto plan = std::make_shared<RegionPlan>(*plan_region(*region.trace, *next++, region.activation_bytes));
    plan->measured = region.times_measured >= steps_measured;
    region.plan = std::move(plan);
    region.trace->forget();
  }
}

void BudgetPlan::backward_begins() {
  const MutexLock lock(mutex_);
  if (begun_ == 0) return;
  if (begun_ < regions_.size()) regions_.resize(begun_), news_ = true;
  begun_ = 0;
  last_ = std::exchange(step_, {});
  if (std::exchange(news_, false)) plan_all();
}

BudgetReport BudgetPlan::report() const {
  const MutexLock lock(mutex_);
  return begun_ == 0 ? last_ : step_;
}

std::shared_ptr<BudgetFrame>& current_budget() {
  static thread_local std::shared_ptr<BudgetFrame> innermost;
  return innermost;
}

namespace {

BudgetOptions checked(const BudgetOptions& options) {
  const bool by_fraction = options.fraction != -1, by_bytes = options.target_bytes != -1;
  TORCH_CHECK_VALUE(by_fraction != by_bytes, "budget: expected a fraction or target_bytes, got ",
                    by_fraction ? "both" : "neither", ".");
  if (by_fraction) check_fraction("budget", options.fraction);
  TORCH_CHECK_VALUE(by_fraction || options.target_bytes >= 0, "budget: expected target_bytes of at least 0, got ",
                    options.target_bytes, ".");
  return options;
}

std::shared_ptr<BudgetFrame> install_budget(std::shared_ptr<BudgetPlan> plan) {
  auto frame = std::make_shared<BudgetFrame>();
  frame->plan = std::move(plan);
  frame->outer = current_budget();
  return current_budget() = std::move(frame);
}

}  // namespace
}  // namespace detail

BudgetPlanner::BudgetPlanner(const BudgetOptions& options)
    : plan_(std::make_shared<detail::BudgetPlan>(detail::checked(options))) {}

BudgetReport BudgetPlanner::report() const {
  return plan_->report();
}

BudgetGuard::BudgetGuard(double fraction) {
  detail::check_fraction("budget", fraction);
  frame_ = detail::install_budget(std::make_shared<detail::BudgetPlan>(BudgetOptions{.fraction = fraction}));
}

BudgetGuard::BudgetGuard(const BudgetOptions& options) : BudgetGuard(BudgetPlanner(options)) {}

BudgetGuard::BudgetGuard(const BudgetPlanner& planner) : frame_(detail::install_budget(planner.plan_)) {}

BudgetGuard::~BudgetGuard() {
  frame_->ended = true;
  auto& current = detail::current_budget();
  if (current != frame_)
    log_error(
        "budget: the guard was destroyed out of order or on the wrong thread. Destroy guards in the reverse order of "
        "their creation, on the thread that created them.");
  while (current && current->ended) current = std::shared_ptr(current->outer);
}

BudgetReport BudgetGuard::report() const {
  return frame_->plan->report();
}

}  // namespace bellows::recompute
