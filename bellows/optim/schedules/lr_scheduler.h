#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// Sets the learning rate, and where asked the momentum, of every parameter group from a schedule. The rates of step 0
/// are set at once; after each optimizer step, step() sets those of the next.
///
/// The base rates are the groups' rates when this object is made. Make it before the optimizer's state is loaded, or
/// load this object's state too: it holds the base rates. A learning rate given as tensor
/// (optimizers.h: lr_tensor) is filled in place, without a wait for its device; its value is the base rate of all
/// groups.
/// Threads:  one thread at a time, the optimizer's; the optimizer outlives this object
/// Ref:      torch.optim.lr_scheduler.LRScheduler
class LrScheduler {
 public:
  /// The same schedule for all groups.
  /// Throws: c10::ValueError – no group, no schedule, a base rate that is negative or not finite
  LrScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  LrScheduler(torch::optim::Optimizer& optimizer, GroupSchedule schedule);
  /// A schedule of its own for each group.
  /// Throws: c10::ValueError – another number of schedules than of groups; as above
  LrScheduler(torch::optim::Optimizer& optimizer, std::vector<GroupSchedule> schedules);

  /// Throws: c10::ValueError – the schedule ended or gave a rate that is negative or not finite, or groups were added;
  ///         nothing is changed then
  void step() { set_step(step_ + 1); }
  /// Goes to any step. Throws: as step()
  void set_step(int64_t step);
  /// Steps taken: the one whose rates are set.
  int64_t last_step() const { return step_; }
  /// The rates that are set, one a group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  const std::vector<double>& base_lrs() const { return base_lrs_; }

  /// "step" (int64) and "base_lrs" (float64, one a group).
  NamedTensors state_dict() const;
  /// Sets step, base rates and with them the groups' rates. Throws: c10::ValueError – state of another kind or number
  /// of groups; as step(); nothing is changed then
  void load_state_dict(const NamedTensors& state);

 private:
  void apply(int64_t step, const std::vector<double>& base_lrs);

  torch::optim::Optimizer* optimizer_;
  std::vector<GroupSchedule> schedules_;
  std::vector<double> base_lrs_, last_lr_;
  int64_t step_ = 0;
};

/// Sets `momentum` (SGD, RMSprop) or the first of `betas` (Adam, AdamW, Lion) of a group's options.
/// Throws:   c10::ValueError – the optimizer has neither
void set_momentum(torch::optim::OptimizerOptions& options, double momentum);
/// Throws:   c10::ValueError – the optimizer has neither
double get_momentum(const torch::optim::OptimizerOptions& options);

/// Whether a metric shall fall or rise.
enum class PlateauMode { min, max };
/// What the threshold is relative to.
enum class ThresholdMode { rel, abs };

/// Params:   factor – the rate is multiplied by it
///           patience – metrics without an improvement that are let pass
///           threshold – what counts as an improvement: of the best metric (rel), or itself (abs)
///           cooldown – metrics after a reduction that are not counted as bad
///           min_factor – the rate stays at or above this fraction of the base rate (PyTorch: min_lr)
///           eps – a reduction by less than this fraction of the base rate is left out (PyTorch: absolute)
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

/// Reduces the rate when a metric stops improving: a factor with a state, fed with one metric at a time. It is used
/// alone, `set_lr(optimizer, base_lr * plateau.step(loss))`, or times a schedule: LrScheduler(optimizer,
/// chained({cosine, plateau.as_schedule()})).
/// Threads:  one thread at a time
/// Ref:      torch.optim.lr_scheduler.ReduceLROnPlateau
class ReduceLrOnPlateau {
 public:
  /// Throws: c10::ValueError – options out of range
  explicit ReduceLrOnPlateau(const PlateauOptions& options = {});

  /// Takes one metric and returns factor(). A metric that is NaN is no improvement, as in PyTorch.
  double step(double metric);
  double factor() const { return state_->factor; }
  /// The factor whatever the step; it goes on following this object, and may outlive it.
  Schedule as_schedule() const;

  /// "best", "factor" (float64), "num_bad", "cooldown" (int64).
  NamedTensors state_dict() const;
  /// Throws: c10::ValueError – state of another kind; nothing is changed then
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
