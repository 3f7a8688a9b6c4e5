#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// Sets the learning rate, and optionally the momentum, of every parameter group from a schedule. The constructor sets
/// the rates of step 0. After each optimizer step, call step() to set the rates of the next step.
///
/// The base rates are the learning rates of the groups when this object is created. Therefore, create this object
/// before you load the optimizer's state. If you create it later, also load this object's state, which contains the
/// base rates. If the optimizer has a learning-rate tensor (lr_tensor in optimizers.h), its value is the base rate of
/// all groups. The scheduler fills this tensor in place, without waiting for its device.
/// Threads: not thread-safe; use it on the optimizer's thread. The optimizer must outlive this object.
/// Ref:     torch.optim.lr_scheduler.LRScheduler
class LrScheduler {
 public:
  /// Uses the same schedule for all groups.
  /// Throws: c10::ValueError if there is no group or no schedule, or if a base rate is negative or not finite
  LrScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  LrScheduler(torch::optim::Optimizer& optimizer, GroupSchedule schedule);
  /// Uses one schedule per group.
  /// Throws: c10::ValueError if the number of schedules differs from the number of groups; otherwise like the other
  ///         constructors
  LrScheduler(torch::optim::Optimizer& optimizer, std::vector<GroupSchedule> schedules);

  /// Throws: c10::ValueError if the schedule has ended, if it returns a rate that is negative or not finite, or if
  ///         groups were added. Nothing is changed in this case
  void step() { set_step(step_ + 1); }
  /// Sets the rates of a given step.
  /// Throws: like step()
  void set_step(int64_t step);
  /// The number of the step whose rates are set. It equals the number of completed steps.
  int64_t last_step() const { return step_; }
  /// The current rates, one per group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  const std::vector<double>& base_lrs() const { return base_lrs_; }

  /// Returns "step" (int64) and "base_lrs" (float64, one per group).
  NamedTensors state_dict() const;
  /// Sets the step and the base rates, and computes the groups' rates from them.
  /// Throws: c10::ValueError if the state is of a different kind or has a different number of groups, and under the
  ///         same conditions as step(). Nothing is changed in this case.
  void load_state_dict(const NamedTensors& state);

 private:
  void apply(int64_t step, const std::vector<double>& base_lrs);

  torch::optim::Optimizer* optimizer_;
  std::vector<GroupSchedule> schedules_;
  std::vector<double> base_lrs_, last_lr_;
  int64_t step_ = 0;
};

/// Sets `momentum` (SGD, RMSprop) or the first of `betas` (Adam, AdamW, Lion) in a group's options.
/// Throws: c10::ValueError if the options have neither
void set_momentum(torch::optim::OptimizerOptions& options, double momentum);
/// Returns the value that set_momentum() sets.
/// Throws: c10::ValueError if the options have neither
double get_momentum(const torch::optim::OptimizerOptions& options);

/// Whether the metric is minimized or maximized.
enum class PlateauMode { min, max };
/// Whether the threshold is relative or absolute.
enum class ThresholdMode { rel, abs };

/// Params: factor – the rate is multiplied by this factor
///         patience – number of metrics without improvement that are allowed before the rate is reduced
///         threshold – minimum improvement: relative to the best metric (rel) or absolute (abs)
///         cooldown – number of metrics after a reduction that do not count as bad
///         min_factor – lower bound of the rate, as a fraction of the base rate (in PyTorch: min_lr)
///         eps – minimum reduction, as a fraction of the base rate; smaller reductions are skipped (in PyTorch:
///         absolute)
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

/// Reduces the learning rate when a metric stops improving. Its state is a factor, which you update with one metric at
/// a time. Use it alone, as in `set_lr(optimizer, base_lr * plateau.step(loss))`. Alternatively, multiply its factor
/// with a schedule, as in `LrScheduler(optimizer, chained({cosine, plateau.as_schedule()}))`.
/// Threads: not thread-safe
/// Ref:     torch.optim.lr_scheduler.ReduceLROnPlateau
class ReduceLrOnPlateau {
 public:
  /// Throws: c10::ValueError if options are out of range
  explicit ReduceLrOnPlateau(const PlateauOptions& options = {});

  /// Adds one metric and returns factor(). NaN does not count as an improvement, as in PyTorch.
  double step(double metric);
  double factor() const { return state_->factor; }
  /// Returns a schedule that has the current factor of this object at every step. The schedule can outlive this object.
  Schedule as_schedule() const;

  /// Returns "best", "factor" (float64), "num_bad" and "cooldown" (int64).
  NamedTensors state_dict() const;
  /// Throws: c10::ValueError if the state is of a different kind; nothing is changed in this case
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
