#include "bellows/optim/schedules/lr_scheduler.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <limits>

#include "bellows/optim/lion.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/schedules/schedule_check.h"

namespace bellows::optim {

namespace {

const at::Tensor& entry(const char* where, const NamedTensors& state, const char* name, at::ScalarType dtype) {
  for (const auto& [key, tensor] : state) {
    if (key != name) continue;
    TORCH_CHECK_VALUE(tensor.defined() && tensor.scalar_type() == dtype, where, ": expected \"", name, "\" of dtype ",
                      dtype, ", got ", tensor.defined() ? c10::toString(tensor.scalar_type()) : "nothing", ".");
    return tensor;
  }
  TORCH_CHECK_VALUE(false, where, ": \"", name, "\" is missing. The state belongs to another kind of object.");
}

double number_entry(const char* where, const NamedTensors& state, const char* name) {
  const at::Tensor& tensor = entry(where, state, name, at::kDouble);
  TORCH_CHECK_VALUE(tensor.numel() == 1, where, ": expected \"", name, "\" to be one number.");
  return tensor.item<double>();
}

int64_t count_entry(const char* where, const NamedTensors& state, const char* name) {
  const at::Tensor& tensor = entry(where, state, name, at::kLong);
  TORCH_CHECK_VALUE(tensor.numel() == 1 && tensor.item<int64_t>() >= 0, where, ": expected \"", name,
                    "\" to be one number of at least 0.");
  return tensor.item<int64_t>();
}

at::Tensor as_tensor(double value) {
  return at::scalar_tensor(value, at::dtype(at::kDouble));
}
at::Tensor as_tensor(int64_t value) {
  return at::scalar_tensor(value, at::dtype(at::kLong));
}

/// Calls `use` with a reference to the momentum or beta1 in `options`, in the manner of libtorch's accessors.
template <class Use>
bool with_momentum(torch::optim::OptimizerOptions& options, Use use) {
  namespace to = torch::optim;
  const auto first_beta = [&](auto& adam) { use(std::get<0>(adam.betas())); };
  if (auto* sgd = dynamic_cast<to::SGDOptions*>(&options)) return use(sgd->momentum()), true;
  if (auto* rmsprop = dynamic_cast<to::RMSpropOptions*>(&options)) return use(rmsprop->momentum()), true;
  if (auto* adam = dynamic_cast<to::AdamOptions*>(&options)) return first_beta(*adam), true;
  if (auto* adamw = dynamic_cast<to::AdamWOptions*>(&options)) return first_beta(*adamw), true;
  if (auto* lion = dynamic_cast<LionGroupOptions*>(&options)) return first_beta(*lion), true;
  return false;
}

/// The tensor that replaces all groups' rates; undefined if there is none.
at::Tensor lr_tensor_of(const torch::optim::Optimizer& optimizer) {
  const auto* own = dynamic_cast<const LibtorchOptimizer*>(&optimizer);
  return own ? own->lr_tensor() : at::Tensor();
}

}  // namespace

void set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  TORCH_CHECK_VALUE(with_momentum(options, [&](double& value) { value = momentum; }),
                    "set_momentum: this optimizer has neither momentum nor betas. Set cycle_momentum = false.");
}

double get_momentum(const torch::optim::OptimizerOptions& options) {
  double result = 0;
  TORCH_CHECK_VALUE(
      with_momentum(const_cast<torch::optim::OptimizerOptions&>(options), [&](double& value) { result = value; }),
      "get_momentum: this optimizer has neither momentum nor betas.");
  return result;
}

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer, Schedule schedule)
    : LrScheduler(optimizer, GroupSchedule{std::move(schedule)}) {}

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer, GroupSchedule schedule)
    : LrScheduler(optimizer, std::vector<GroupSchedule>(optimizer.param_groups().size(), schedule)) {}

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer, std::vector<GroupSchedule> schedules)
    : optimizer_(&optimizer), schedules_(std::move(schedules)) {
  const auto& groups = optimizer.param_groups();
  TORCH_CHECK_VALUE(!groups.empty(),
                    "LrScheduler: expected an optimizer with parameters, got one without parameter groups.");
  TORCH_CHECK_VALUE(schedules_.size() == groups.size(), "LrScheduler: expected one schedule for each of the ",
                    groups.size(), " parameter groups, got ", schedules_.size(), ".");
  for (const GroupSchedule& schedule : schedules_) check::callable("LrScheduler", schedule.lr);
  const at::Tensor lr_tensor = lr_tensor_of(optimizer);
  for (const auto& group : groups)
    base_lrs_.push_back(lr_tensor.defined() ? lr_tensor.item<double>() : group.options().get_lr());
  apply(0, base_lrs_);
}

void LrScheduler::set_step(int64_t step) {
  check::count("LrScheduler::set_step", "step", step, 0);
  apply(step, base_lrs_);
}

void LrScheduler::apply(int64_t step, const std::vector<double>& base_lrs) {
  auto& groups = optimizer_->param_groups();
  TORCH_CHECK_VALUE(groups.size() == base_lrs.size(), "LrScheduler: the optimizer has ", groups.size(),
                    " parameter groups, but the scheduler was constructed for ", base_lrs.size(),
                    ". Add groups before you construct the scheduler.");
  std::vector<double> rates, momenta(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    check::number("LrScheduler", "a base learning rate", base_lrs[i]);
    rates.push_back(base_lrs[i] * schedules_[i].lr(step));
    TORCH_CHECK_VALUE(std::isfinite(rates[i]) && rates[i] >= 0,
                      "LrScheduler: the schedule returned a learning rate of ", rates[i], " at step ", step, " (group ",
                      i, ").");
    if (!schedules_[i].momentum) continue;
    momenta[i] = schedules_[i].momentum(step);
    check::number("LrScheduler", "a momentum", momenta[i], 0, 1);
    get_momentum(groups[i].options());  // throws if there is no momentum
  }
  at::Tensor lr_tensor = lr_tensor_of(*optimizer_);
  if (lr_tensor.defined()) {
    TORCH_CHECK_VALUE(std::equal(rates.begin() + 1, rates.end(), rates.begin()),
                      "LrScheduler: the optimizer's learning rate is one tensor for all groups, but they follow "
                      "different schedules. Use numbers instead of a tensor.");
    const c10::NoGradGuard no_grad;
    lr_tensor.fill_(rates[0]);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(rates[i]);
    if (schedules_[i].momentum) set_momentum(groups[i].options(), momenta[i]);
  }
  last_lr_ = std::move(rates);
  step_ = step;
}

NamedTensors LrScheduler::state_dict() const {
  return {{"step", as_tensor(step_)}, {"base_lrs", at::tensor(base_lrs_, at::dtype(at::kDouble))}};
}

void LrScheduler::load_state_dict(const NamedTensors& state) {
  constexpr const char* where = "LrScheduler::load_state_dict";
  const int64_t step = count_entry(where, state, "step");
  const at::Tensor base = entry(where, state, "base_lrs", at::kDouble).contiguous();
  TORCH_CHECK_VALUE(base.dim() == 1 && base.numel() == static_cast<int64_t>(base_lrs_.size()), where,
                    ": the state has ", base.numel(), " parameter groups, but this optimizer has ", base_lrs_.size(),
                    ".");
  std::vector<double> base_lrs(base.const_data_ptr<double>(), base.const_data_ptr<double>() + base.numel());
  apply(step, base_lrs);
  base_lrs_ = std::move(base_lrs);
}

// --- plateau

ReduceLrOnPlateau::ReduceLrOnPlateau(const PlateauOptions& options)
    : options_(options), state_(std::make_shared<State>()) {
  constexpr const char* where = "ReduceLrOnPlateau";
  check::number(where, "factor", options.factor);
  TORCH_CHECK_VALUE(options.factor < 1, where, ": expected a factor below 1, got ", options.factor, ".");
  check::count(where, "patience", options.patience, 0);
  check::count(where, "cooldown", options.cooldown, 0);
  check::number(where, "threshold", options.threshold);
  check::number(where, "min_factor", options.min_factor);
  check::number(where, "eps", options.eps);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  state_->best = options.mode == PlateauMode::min ? infinity : -infinity;
}

bool ReduceLrOnPlateau::is_better(double metric) const {
  const double sign = options_.mode == PlateauMode::min ? -1 : 1, best = state_->best;
  const double bar = options_.threshold_mode == ThresholdMode::rel ? best * (1 + sign * options_.threshold)
                                                                   : best + sign * options_.threshold;
  return sign * metric > sign * bar;
}

double ReduceLrOnPlateau::step(double metric) {
  State& s = *state_;
  if (is_better(metric)) {
    s.best = metric;
    s.num_bad = 0;
  } else {
    ++s.num_bad;
  }
  if (s.cooldown > 0) {
    --s.cooldown;
    s.num_bad = 0;
  }
  if (s.num_bad > options_.patience) {
    const double reduced = std::max(s.factor * options_.factor, options_.min_factor);
    if (s.factor - reduced > options_.eps) s.factor = reduced;
    s.cooldown = options_.cooldown;
    s.num_bad = 0;
  }
  return s.factor;
}

Schedule ReduceLrOnPlateau::as_schedule() const {
  return [state = state_](int64_t) { return state->factor; };
}

NamedTensors ReduceLrOnPlateau::state_dict() const {
  return {{"best", as_tensor(state_->best)},
          {"factor", as_tensor(state_->factor)},
          {"num_bad", as_tensor(state_->num_bad)},
          {"cooldown", as_tensor(state_->cooldown)}};
}

void ReduceLrOnPlateau::load_state_dict(const NamedTensors& state) {
  constexpr const char* where = "ReduceLrOnPlateau::load_state_dict";
  State loaded{.best = number_entry(where, state, "best"),
               .factor = number_entry(where, state, "factor"),
               .num_bad = count_entry(where, state, "num_bad"),
               .cooldown = count_entry(where, state, "cooldown")};
  check::number(where, "factor", loaded.factor);
  *state_ = loaded;
}

}  // namespace bellows::optim
