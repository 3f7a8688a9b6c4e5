#pragma once

#include <cstdint>
#include <functional>
#include <vector>

/// Learning-rate schedules. All rates in this header are fractions of the parameter group's base rate. One schedule can
/// therefore serve groups with different rates, and changing the base rates (scaled_lr) scales the rates of the
/// complete run. If PyTorch expects an absolute rate (eta_min, base_lr, lr_end), pass that rate divided by the group's
/// base rate.
/// Numerics: equal to PyTorch's schedules to 1e-12 of the base rate over 100 steps (tests/optim/schedule_test.cpp)
/// Throws:   all functions that create a schedule throw c10::ValueError if a number is out of range
namespace bellows::optim {

/// A multiplier for the base learning rate, as a pure function of the number of completed steps. A schedule has no
/// state, so a resumed run continues with the same rates. The caller chooses the unit of a step (optimizer step or
/// epoch). Every function of this type is a valid schedule.
/// Ref: torch.optim.lr_scheduler.LambdaLR
using Schedule = std::function<double(int64_t step)>;

/// Schedules of one parameter group.
/// Params: lr – multiplier for the base rate
///         momentum – value of momentum (SGD, RMSprop) or beta1 (Adam family, Lion); null: the value is not changed
struct GroupSchedule {
  Schedule lr;
  Schedule momentum = nullptr;
};

/// Shape of the transition between two values.
enum class Anneal { cos, linear };

/// A schedule with the same factor at every step.
Schedule constant_schedule(double factor = 1);

/// Linear warm-up over the first `warmup_steps` steps, in which step s has the rate then(s) · (s + 1) / warmup_steps.
/// The rate of the first step is therefore not 0.
/// Throws: c10::ValueError if warmup_steps is negative
/// Ref:    arXiv:1706.02677
Schedule linear_warmup(int64_t warmup_steps, Schedule then = constant_schedule());

/// `factor` for the first `total_steps` steps, then 1.
/// Ref: torch.optim.lr_scheduler.ConstantLR
Schedule constant_lr(double factor = 1.0 / 3, int64_t total_steps = 5);

/// gamma^(step / step_size) with integer division.
/// Ref: torch.optim.lr_scheduler.StepLR
Schedule step_lr(int64_t step_size, double gamma = 0.1);

/// Multiplies the rate by `gamma` at each of `milestones`, which must increase.
/// Ref: torch.optim.lr_scheduler.MultiStepLR
Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);

/// gamma^step.
/// Ref: torch.optim.lr_scheduler.ExponentialLR
Schedule exponential_lr(double gamma);

/// Changes linearly from `start_factor` to `end_factor` over `total_steps`.
/// Ref: torch.optim.lr_scheduler.LinearLR
Schedule linear_lr(double start_factor = 1.0 / 3, double end_factor = 1, int64_t total_steps = 5);

/// min_factor + (1 - min_factor) · (1 - step / total_steps)^power, then `min_factor`.
/// Ref: torch.optim.lr_scheduler.PolynomialLR; transformers' get_polynomial_decay_schedule_with_warmup (pass the
///      schedule as `then` to warmup(), with min_factor = lr_end / base rate)
Schedule polynomial_lr(int64_t total_steps = 5, double power = 1, double min_factor = 0);

/// 1 / sqrt((step + timescale) / timescale). The factor is 1 at the start and 0.5 after 3 · timescale steps.
/// Ref: transformers' get_inverse_sqrt_schedule (pass the schedule as `then` to warmup(); the default timescale in
///      transformers is the number of warm-up steps)
Schedule inverse_sqrt_lr(int64_t timescale = 10000);

/// Follows half a cosine from 1 to `min_factor` over `t_max` steps. Afterwards, the rate rises again.
/// Ref: arXiv:1608.03983; torch.optim.lr_scheduler.CosineAnnealingLR
Schedule cosine_annealing_lr(int64_t t_max, double min_factor = 0);

/// Follows `cycles` cosine waves over `total_steps`; the default of 0.5 is half a wave. Afterwards, the rate keeps its
/// last value. In contrast, cosine_annealing_lr() raises the rate again.
/// Ref: transformers' get_cosine_schedule_with_warmup
Schedule cosine_lr(int64_t total_steps, double cycles = 0.5, double min_factor = 0);

/// Repeats half cosines from 1 to `min_factor`. The first one takes `t_0` steps. Each later one takes `t_mult` times as
/// many steps as the one before.
/// Ref: arXiv:1608.03983; torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
Schedule cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult = 1, double min_factor = 0);

/// Params: total_steps – end of the schedule
///         pct_start – fraction of the steps in which the rate rises
///         div_factor, final_div_factor – the rate starts at 1 / div_factor and ends at 1 / (div_factor ·
///         final_div_factor)
///         base_momentum – momentum at the highest rate
///         max_momentum – momentum at the lowest rate
///         three_phase – true: after its peak, the rate falls back to its start value over as many steps as the rise
///         took, and a third phase lowers it to the end value
struct OneCycleOptions {
  int64_t total_steps = 0;
  double pct_start = 0.3;
  Anneal anneal = Anneal::cos;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};

/// Raises the rate to the group's base rate (PyTorch's max_lr), then lowers it to almost zero. The momentum changes in
/// the opposite direction. As in PyTorch, the schedule also accepts the step number total_steps, although the last step
/// has the number total_steps - 1. In Bellows, this extra step has the values of the last step.
/// Throws: the schedule throws c10::ValueError if it is called with a step beyond total_steps
/// Ref:    arXiv:1708.07120; torch.optim.lr_scheduler.OneCycleLR
GroupSchedule one_cycle_lr(const OneCycleOptions& options);

/// How the amplitude changes from cycle to cycle.
enum class CyclicMode {
  triangular,   ///< constant amplitude
  triangular2,  ///< the amplitude is halved in each cycle
  exp_range,    ///< the amplitude is multiplied by gamma^step
};

/// Params: base_factor – lowest rate (in PyTorch: base_lr / max_lr)
///         step_size_up, step_size_down – steps of each half; if step_size_down is 0, it equals step_size_up
///         base_momentum – momentum at the highest rate
///         max_momentum – momentum at the lowest rate
struct CyclicOptions {
  double base_factor = 0.1;
  int64_t step_size_up = 2000;
  int64_t step_size_down = 0;
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1;
  bool cycle_momentum = true;
  double base_momentum = 0.8;
  double max_momentum = 0.9;
};

/// Repeatedly raises the rate to the group's base rate (PyTorch's max_lr) and lowers it again. The momentum changes in
/// the opposite direction.
/// Ref: arXiv:1506.01186; torch.optim.lr_scheduler.CyclicLR
GroupSchedule cyclic_lr(const CyclicOptions& options);

/// Params: start – step at which annealing begins; earlier steps use the schedule `before`
///         anneal_steps – number of annealing steps
///         factor – final value
struct SwaLrOptions {
  int64_t start = 0;
  int64_t anneal_steps = 10;
  double factor = 0.5;
  Anneal anneal = Anneal::cos;
};

/// Anneals from the value of `before` at step `start` to a constant rate. Use it for weight averaging (averaging.h).
/// Ref: arXiv:1803.05407; torch.optim.swa_utils.SWALR (factor = swa_lr / base rate)
Schedule swa_lr(const SwaLrOptions& options, Schedule before = constant_schedule());

}  // namespace bellows::optim
