#pragma once

#include <cstdint>
#include <functional>
#include <vector>

/// Learning-rate schedules. Every rate here is a fraction of the parameter group's base rate. One schedule therefore
/// serves groups with different rates, and scaling the base rates (scaled_lr) scales the whole run. Where PyTorch takes
/// an absolute rate (eta_min, base_lr, lr_end), pass that rate divided by the group's base rate.
/// Numerics: equal to Python's to 1e-12 of the base rate over 100 steps (tests/optim/schedule_test.cpp)
/// Throws:   every function throws c10::ValueError, when it is called, for numbers out of range
namespace bellows::optim {

/// The factor of the base learning rate, as a pure function of the number of steps already taken. A schedule has no
/// state, so a resumed run continues with the same rates. The caller chooses the unit of a step (optimizer step or
/// epoch). Any function of your own is a valid schedule.
/// Ref: torch.optim.lr_scheduler.LambdaLR
using Schedule = std::function<double(int64_t step)>;

/// Schedules of one parameter group.
/// Params: lr – factor of the base rate
///         momentum – value of the momentum (SGD, RMSprop) or of beta1 (Adam family, Lion); null: not changed
struct GroupSchedule {
  Schedule lr;
  Schedule momentum = nullptr;
};

/// Shape of the transition between two values.
enum class Anneal { cos, linear };

/// The same factor at every step.
Schedule constant_schedule(double factor = 1);

/// Linear warm-up over the first `warmup_steps` steps: step s < warmup_steps has the rate then(s) · (s + 1) /
/// warmup_steps, so that the first step does not have a rate of 0.
/// Throws: c10::ValueError if warmup_steps is negative
/// Ref:    arXiv:1706.02677
Schedule linear_warmup(int64_t warmup_steps, Schedule then = constant_schedule());

/// `factor` for the first `total_steps` steps, then 1.
/// Ref: torch.optim.lr_scheduler.ConstantLR
Schedule constant_lr(double factor = 1.0 / 3, int64_t total_steps = 5);

/// gamma^(step / step_size) with integer division.
/// Ref: torch.optim.lr_scheduler.StepLR
Schedule step_lr(int64_t step_size, double gamma = 0.1);

/// Multiplies by `gamma` at each of `milestones`, which must increase.
/// Ref: torch.optim.lr_scheduler.MultiStepLR
Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);

/// gamma^step.
/// Ref: torch.optim.lr_scheduler.ExponentialLR
Schedule exponential_lr(double gamma);

/// Linear from `start_factor` to `end_factor` over `total_steps`.
/// Ref: torch.optim.lr_scheduler.LinearLR
Schedule linear_lr(double start_factor = 1.0 / 3, double end_factor = 1, int64_t total_steps = 5);

/// min_factor + (1 - min_factor) · (1 - step / total_steps)^power, then `min_factor`.
/// Ref: torch.optim.lr_scheduler.PolynomialLR; transformers' get_polynomial_decay_schedule_with_warmup (as `then` of
///      warmup(), with lr_end over the base rate as min_factor)
Schedule polynomial_lr(int64_t total_steps = 5, double power = 1, double min_factor = 0);

/// 1 / sqrt((step + timescale) / timescale): 1 at the start, 0.5 after 3 · timescale steps.
/// Ref: transformers' get_inverse_sqrt_schedule (as `then` of warmup(); its default timescale is the number of warm-up
///      steps)
Schedule inverse_sqrt_lr(int64_t timescale = 10000);

/// Half a cosine from 1 to `min_factor` over `t_max` steps. After that, the rate rises again.
/// Ref: arXiv:1608.03983; torch.optim.lr_scheduler.CosineAnnealingLR
Schedule cosine_annealing_lr(int64_t t_max, double min_factor = 0);

/// `cycles` cosine waves over `total_steps`; 0.5 is the usual half wave. After that, the rate keeps its last value,
/// unlike cosine_annealing_lr(), which rises again.
/// Ref: transformers' get_cosine_schedule_with_warmup
Schedule cosine_lr(int64_t total_steps, double cycles = 0.5, double min_factor = 0);

/// Half cosines from 1 to `min_factor`. The first takes `t_0` steps, and each following one `t_mult` times as many.
/// Ref: arXiv:1608.03983; torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
Schedule cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult = 1, double min_factor = 0);

/// Params: total_steps – end of the schedule
///         pct_start – fraction of the steps in which the rate rises
///         div_factor, final_div_factor – the rate starts at 1 / div_factor and ends at 1 / (div_factor ·
///         final_div_factor)
///         base_momentum – momentum at the highest rate
///         max_momentum – momentum at the lowest rate
///         three_phase – the rate falls in as many steps as it rose; a third phase then decreases it to the end value
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
/// the opposite direction. PyTorch allows one step more than total_steps; here that step has the values of the last
/// one.
/// Throws: c10::ValueError also if the schedule is called for a step beyond total_steps
/// Ref:    arXiv:1708.07120; torch.optim.lr_scheduler.OneCycleLR
GroupSchedule one_cycle_lr(const OneCycleOptions& options);

/// How the amplitude changes from cycle to cycle.
enum class CyclicMode {
  triangular,   ///< constant
  triangular2,  ///< halved each cycle
  exp_range,    ///< multiplied by gamma^step
};

/// Params: base_factor – lowest rate (PyTorch's base_lr over max_lr)
///         step_size_up, step_size_down – steps of each half; step_size_down = 0 means step_size_up
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

/// Raises the rate to the group's base rate (PyTorch's max_lr) and lowers it again, repeatedly. The momentum changes in
/// the opposite direction.
/// Ref: arXiv:1506.01186; torch.optim.lr_scheduler.CyclicLR
GroupSchedule cyclic_lr(const CyclicOptions& options);

/// Params: start – step at which annealing begins; until then, `before` applies
///         anneal_steps – number of annealing steps
///         factor – final value
struct SwaLrOptions {
  int64_t start = 0;
  int64_t anneal_steps = 10;
  double factor = 0.5;
  Anneal anneal = Anneal::cos;
};

/// Anneals from the value of `before` at step `start` to a constant rate, for weight averaging (averaging.h).
/// Ref: arXiv:1803.05407; torch.optim.swa_utils.SWALR (factor: swa_lr over the base rate)
Schedule swa_lr(const SwaLrOptions& options, Schedule before = constant_schedule());

}  // namespace bellows::optim
