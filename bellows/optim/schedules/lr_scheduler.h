#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// Sets the learning rate, and optionally the momentum, of every parameter group from a schedule. The constructor sets
/// the rates of step 0. After each optimizer step, step() sets the rates of the next one.
///
/// The base rates are the groups' rates when this object is constructed. Construct it before you load the optimizer's
/// state, or load this object's state, too, because it contains the base rates. A learning-rate tensor (lr_tensor in
/// optimizers.h) is filled in place without waiting for its device; its value is the base rate of all groups.
/// Threads: not thread-safe; use the optimizer's thread. The optimizer must outlive this object.
/// Ref:     torch.optim.lr_scheduler.LRScheduler
class LrScheduler {
 public:
  /// Uses the same schedule for all groups.
  /// Throws: c10::ValueError if there is no group or no schedule, or if a base rate is negative or not finite
  LrScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  LrScheduler(torch::optim::Optimizer& optimizer, GroupSchedule schedule);
  /// Uses one schedule per group.
  /// Throws: c10::ValueError if the number of schedules differs from the number of groups; otherwise as above
  LrScheduler(torch::optim::Optimizer& optimizer, std::vector<GroupSchedule> schedules);

  /// Throws: c10::ValueError if the schedule has ended, if it returns a rate that is negative or not finite, or if
  ///         groups were added; then nothing is changed
  void step() { set_step(step_ + 1); }
  /// Goes to any step.
  /// Throws: as step()
  void set_step(int64_t step);
  /// The number of the step whose rates are set, that is, the number of steps taken.
  int64_t last_step() const { return step_; }
  /// The current rates, one per group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  const std::vector<double>& base_lrs() const { return base_lrs_; }

  /// "step" (int64) and "base_lrs" (float64, one per group).
  NamedTensors state_dict() const;
  /// Sets the step and base rates, and from them the groups' rates.
  /// Throws: c10::ValueError if the state is of another kind or has another number of groups; otherwise as step(). Then
  ///         nothing is changed.
  void load_state_dict(const NamedTensors& state);

 private:
  void apply(int64_t step, const std::vector<double>& base_lrs);

  torch::optim::Optimizer* optimizer_;
  std::vector<GroupSchedule> schedules_;
  std::vector<double> base_lrs_, last_lr_;
  int64_t step_ = 0;
};

/// Sets `momentum` (SGD, RMSprop) or the first of `betas` (Adam, AdamW, Lion) in a group's options.
/// Throws: c10::ValueError if the optimizer has neither
void set_momentum(torch::optim::OptimizerOptions& options, double momentum);
/// Throws: c10::ValueError if the optimizer has neither
double get_momentum(const torch::optim::OptimizerOptions& options);

/// Whether the metric is to be minimized or maximized.
enum class PlateauMode { min, max };
/// Whether the threshold is relative or absolute.
enum class ThresholdMode { rel, abs };

/// Params: factor – factor of a reduction
///         patience – number of metrics without improvement that are tolerated
///         threshold – minimum improvement: relative to the best metric (rel) or absolute (abs)
///         cooldown – number of metrics after a reduction that are not counted as bad
///         min_factor – lower bound of the rate, as a fraction of the base rate (PyTorch: min_lr)
///         eps – reductions by less than this fraction of the base rate are skipped (PyTorch: absolute)
struct PlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  int64_t cooldown = 0;
  double min_factor = 0;
  double eps = 1e-8;
};

/// Reduces the learning rate when a metric stops improving. It is a factor with state that you update with one metric
/// at a time. Use it alone, `set_lr(optimizer, base_lr * plateau.step(loss))`, or multiply it with a schedule:
/// LrScheduler(optimizer, chained({cosine, plateau.as_schedule()})).
/// Threads: not thread-safe
/// Ref:     torch.optim.lr_scheduler.ReduceLROnPlateau
class ReduceLrOnPlateau {
 public:
  /// Throws: c10::ValueError if options are out of range
  explicit ReduceLrOnPlateau(const PlateauOptions& options = {});

  /// Adds one metric and returns factor(). NaN counts as no improvement, as in PyTorch.
  double step(double metric);
  double factor() const { return state_->factor; }
  /// A schedule that returns the current factor of this object at any step. It can outlive this object.
  Schedule as_schedule() const;

  /// "best", "factor" (float64), "num_bad", "cooldown" (int64).
  NamedTensors state_dict() const;
  /// Throws: c10::ValueError if the state is of another kind; then nothing is changed
  void load_state_dict(const NamedTensors& state);

 private:
  struct State {
    double best, factor = 1;
    int64_t num_bad = 0, cooldown = 0;
  };
  bool is_better(double metric) const;

  PlateauOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace bellows::optim
