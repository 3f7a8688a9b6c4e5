#include "bellows/train/step/rates.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bellows/optim/schedules/schedule_compose.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

/// One-cycle momentum varies by this amount around the recipe's momentum.
constexpr double momentum_swing = 0.05;

/// The schedule after the warm-up, over `steps` steps.
optim::Schedule decay(const Recipe& recipe, int64_t steps) {
  if (recipe.lr_schedule == "linear") return optim::polynomial_lr(steps, 1, recipe.lr_schedule_end);
  if (recipe.lr_schedule == "cosine") return optim::cosine_lr(steps, 0.5, recipe.lr_schedule_end);
  if (recipe.lr_schedule == "step" && steps >= 4) return optim::multi_step_lr({steps / 2, steps * 3 / 4});
  if (recipe.lr_schedule == "inverse_sqrt") return optim::inverse_sqrt_lr(std::max<int64_t>(1, steps / 10));
  return optim::constant_schedule();
}

optim::GroupSchedule make_schedule(const Recipe& recipe, const Growth& growth) {
  const int64_t total = growth.total_steps(recipe.epochs);
  if (recipe.lr_schedule == "one_cycle") {
    const bool momentum = recipe.optimizer != "adagrad" && recipe.momentum > 0;
    return optim::one_cycle_lr({.total_steps = std::max<int64_t>(2, total),
                                .cycle_momentum = momentum,
                                .base_momentum = std::max(0.0, recipe.momentum - momentum_swing),
                                .max_momentum = std::min(1.0, recipe.momentum + momentum_swing),
                                .final_div_factor = 1 / std::max(1e-4, recipe.lr_schedule_end * 25)});
  }
  const auto whole_epochs = static_cast<int64_t>(recipe.warmup_epochs);
  const double part = recipe.warmup_epochs - static_cast<double>(whole_epochs);
  const auto warmup = growth.total_steps(whole_epochs) +
                      static_cast<int64_t>(std::llround(part * static_cast<double>(growth.steps(whole_epochs))));
  const optim::Schedule behind = decay(recipe, std::max<int64_t>(1, total - warmup));
  if (warmup == 0) return {behind};
  return {[warmup, behind](int64_t step) {
    return step < warmup ? static_cast<double>(step + 1) / static_cast<double>(warmup) : behind(step - warmup);
  }};
}

}  // namespace

Rates::Rates(const Recipe& recipe, Growth growth, Optimizers optimizers)
    : growth_(std::move(growth)),
      optimizers_(std::move(optimizers)),
      schedule_(make_schedule(recipe, growth_)),
      full_batch_(static_cast<double>(growth_.full_batch_size())),
      one_cycle_(recipe.lr_schedule == "one_cycle"),
      total_steps_(growth_.total_steps(recipe.epochs)) {
  if (recipe.lr_schedule == "plateau") plateau_.emplace(optim::PlateauOptions{.patience = 3});
  for (const auto& optimizer : optimizers_) {
    auto& rates = base_lr_.emplace_back();
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  }
}

double Rates::factor(int64_t step, int64_t epoch) const {
  // After the end, the rate stays constant.
  const int64_t within = one_cycle_ ? std::min(step, total_steps_ - 1) : step;
  return schedule_.lr(within) * (plateau_ ? plateau_->factor() : 1) * static_cast<double>(growth_.batch_size(epoch)) /
         full_batch_;
}

std::optional<double> Rates::momentum(int64_t step) const {
  if (!schedule_.momentum) return {};
  return schedule_.momentum(std::min(step, total_steps_ - 1));
}

void Rates::set(int64_t step, int64_t epoch) {
  if (const double now = factor(step, epoch); now != factor_) {
    factor_ = now;
    for (const auto i : c10::irange(optimizers_.size())) {
      auto& groups = optimizers_[i]->param_groups();
      for (const auto g : c10::irange(base_lr_[i].size())) groups[g].options().set_lr(base_lr_[i][g] * now);
    }
  }
  if (const std::optional<double> now = momentum(step); now && now != momentum_) {
    momentum_ = now;
    for (const auto& optimizer : optimizers_) {
      for (auto& group : optimizer->param_groups()) optim::set_momentum(group.options(), *now);
    }
  }
}

void Rates::set_base_rates() {
  for (const auto i : c10::irange(optimizers_.size())) {
    auto& groups = optimizers_[i]->param_groups();
    for (const auto g : c10::irange(base_lr_[i].size())) groups[g].options().set_lr(base_lr_[i][g]);
  }
}

void Rates::note_evaluation(double loss) {
  if (plateau_) plateau_->step(loss);
}

NamedTensors Rates::state() const {
  NamedTensors state = plateau_ ? plateau_->state_dict() : NamedTensors();
  state.emplace_back("set_factor", at::scalar_tensor(factor_, at::kDouble));
  if (momentum_) state.emplace_back("set_momentum", at::scalar_tensor(*momentum_, at::kDouble));
  return state;
}

void Rates::restore(const NamedTensors& state) {
  NamedTensors plateau;
  for (const auto& [name, value] : state) {
    if (name == "set_factor") {
      factor_ = value.item<double>();
    } else if (name == "set_momentum") {
      momentum_ = value.item<double>();
    } else {
      plateau.emplace_back(name, value);
    }
  }
  if (plateau_ && !plateau.empty()) plateau_->load_state_dict(plateau);
}

}  // namespace bellows::train
