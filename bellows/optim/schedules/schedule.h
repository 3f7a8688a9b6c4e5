#pragma once

#include <cstdint>
#include <functional>
#include <vector>

/// Learning-rate schedules. Every rate here is a fraction of the base rate of the parameter group: one schedule serves
/// groups of different rates, and scaling the base rates (scaled_lr) scales the whole run. Where PyTorch takes an
/// absolute rate (eta_min, base_lr, lr_end), give that rate over the group's base rate.
/// Numerics: equal to Python's to 1e-12 of the base rate over 100 steps (tests/optim/schedule_test.cpp)
/// Throws:   every function – c10::ValueError for numbers out of range, when it is called
namespace bellows::optim {

/// What the base learning rate of a parameter group is multiplied by, as a pure function of the number of steps already
/// taken: a schedule needs no state of its own, and a run that is resumed goes on with the same rates. The unit of a
/// step (optimizer step, epoch) is the caller's. Any function of your own is a schedule, too.
/// Ref:      torch.optim.lr_scheduler.LambdaLR
using Schedule = std::function<double(int64_t step)>;

/// What one parameter group follows.
/// Params:   lr – factor of the base rate
///           momentum – the momentum of SGD and RMSprop, or beta1 of the Adam family and Lion, itself; null: left alone
struct GroupSchedule {
  Schedule lr;
  Schedule momentum = nullptr;
};

/// The way from one value to another.
enum class Anneal { cos, linear };

/// The same factor at every step.
Schedule constant_schedule(double factor = 1);

/// Rises in a straight line over the first `warmup_steps` steps: step s < warmup_steps runs at then(s) · (s + 1) /
/// warmup_steps, so that no step is lost to a rate of 0.
/// Throws:   c10::ValueError – negative warmup_steps
/// Ref:      arXiv:1706.02677
Schedule linear_warmup(int64_t warmup_steps, Schedule then = constant_schedule());

/// `factor` for the first `total_steps` steps, then 1. Ref: torch.optim.lr_scheduler.ConstantLR
Schedule constant_lr(double factor = 1.0 / 3, int64_t total_steps = 5);

/// gamma^(step / step_size), in whole numbers. Ref: torch.optim.lr_scheduler.StepLR
Schedule step_lr(int64_t step_size, double gamma = 0.1);

/// Multiplied by `gamma` at each of `milestones`, which increase. Ref: torch.optim.lr_scheduler.MultiStepLR
Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);

/// gamma^step. Ref: torch.optim.lr_scheduler.ExponentialLR
Schedule exponential_lr(double gamma);

/// In a straight line from `start_factor` to `end_factor` over `total_steps`. Ref: torch.optim.lr_scheduler.LinearLR
Schedule linear_lr(double start_factor = 1.0 / 3, double end_factor = 1, int64_t total_steps = 5);

/// min_factor + (1 - min_factor) · (1 - step / total_steps)^power, then `min_factor`.
/// Ref:      torch.optim.lr_scheduler.PolynomialLR; transformers' get_polynomial_decay_schedule_with_warmup (behind
///           warmup(), with lr_end over the base rate as min_factor)
Schedule polynomial_lr(int64_t total_steps = 5, double power = 1, double min_factor = 0);

/// 1 / sqrt((step + timescale) / timescale): 1 at first, a half after 3 · timescale steps.
/// Ref:      transformers' get_inverse_sqrt_schedule (behind warmup(), timescale = its steps unless stated)
Schedule inverse_sqrt_lr(int64_t timescale = 10000);

/// Half a cosine from 1 to `min_factor` over `t_max` steps, and up again behind. Ref: arXiv:1608.03983;
///           torch.optim.lr_scheduler.CosineAnnealingLR
Schedule cosine_annealing_lr(int64_t t_max, double min_factor = 0);

/// `cycles` cosine waves over `total_steps`, then 0; 0.5 is the usual half. Behind the end the rate stays at its last
/// value, where cosine_annealing_lr() rises again. Ref: transformers' get_cosine_schedule_with_warmup
Schedule cosine_lr(int64_t total_steps, double cycles = 0.5, double min_factor = 0);

/// Half cosines from 1 to `min_factor`; the first takes `t_0` steps, each further one `t_mult` times as many.
/// Ref:      arXiv:1608.03983; torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
Schedule cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult = 1, double min_factor = 0);

/// Params:   total_steps – the schedule ends there
///           pct_start – share of the rise
///           div_factor, final_div_factor – the rate begins at 1 / div_factor, and ends at that over final_div_factor
///           base_momentum – at the highest rate; max_momentum – at the lowest
///           three_phase – the fall mirrors the rise, then a third phase goes down to the end
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

/// Up to the base rate of the group (PyTorch's max_lr) and down to almost nothing, momentum the other way round.
/// PyTorch runs over the end by one step; here that step has the last one's values.
/// Throws:   c10::ValueError – also when asked for a step beyond total_steps
/// Ref:      arXiv:1708.07120; torch.optim.lr_scheduler.OneCycleLR
GroupSchedule one_cycle_lr(const OneCycleOptions& options);

/// What becomes of the height of cycle n = 1, 2, …
enum class CyclicMode {
  triangular,   ///< stays
  triangular2,  ///< halved each cycle
  exp_range,    ///< times gamma^step
};

/// Params:   base_factor – the lowest rate (PyTorch's base_lr over max_lr)
///           step_size_up, step_size_down – steps of each half; 0 down: as many as up
///           base_momentum – at the highest rate; max_momentum – at the lowest
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

/// Up to the base rate of the group (PyTorch's max_lr) and down again, for ever; momentum the other way round.
/// Ref:      arXiv:1506.01186; torch.optim.lr_scheduler.CyclicLR
GroupSchedule cyclic_lr(const CyclicOptions& options);

/// Params:   start – step at which the annealing begins; `before` holds up to there
///           anneal_steps – how long it takes; factor – where it ends and stays
struct SwaLrOptions {
  int64_t start = 0;
  int64_t anneal_steps = 10;
  double factor = 0.5;
  Anneal anneal = Anneal::cos;
};

/// From what `before` had reached to one constant rate, for averaging weights (averaging.h).
/// Ref:      arXiv:1803.05407; torch.optim.swa_utils.SWALR (factor: swa_lr over the base rate)
Schedule swa_lr(const SwaLrOptions& options, Schedule before = constant_schedule());

}  // namespace bellows::optim
