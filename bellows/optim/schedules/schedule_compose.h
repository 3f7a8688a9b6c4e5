#pragma once

#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// How a warm-up rises from start_factor to 1.
enum class Warmup {
  linear,       ///< linearly
  constant,     ///< stays at start_factor, then jumps to 1
  exponential,  ///< by the same ratio each step; start_factor must be above 0
};

/// Params: steps – length of the warm-up; step s < steps has the warm-up's value at s / steps
///         start_factor – value at step 0
///         under – false: `then` starts at the end of the warm-up, as in SequentialLR and transformers; true: it starts
///         at step 0 and is multiplied by the warm-up, as in ChainedScheduler
struct WarmupOptions {
  int64_t steps = 0;
  double start_factor = 0;
  Warmup shape = Warmup::linear;
  bool under = false;
};

/// A warm-up before any schedule. 0 steps: no warm-up.
/// Throws: c10::ValueError if steps is negative or start_factor is outside [0, 1]
/// Ref:    arXiv:1706.02677; transformers' get_*_schedule_with_warmup; torchvision's references (LinearLR and
///         ConstantLR in a SequentialLR)
Schedule warmup(const WarmupOptions& options, Schedule then = constant_schedule());

/// The product of all schedules. It equals PyTorch's result if each schedule multiplies the rate. PyTorch's schedules
/// with a minimum rate other than 0 also depend on the previous rate, so they are not a function of the step.
/// Throws: c10::ValueError if there is no schedule or one is empty
/// Ref:    torch.optim.lr_scheduler.ChainedScheduler
Schedule chained(std::vector<Schedule> schedules);

/// Runs schedules one after another. Schedule i starts, with its own step 0, at milestones[i - 1].
/// Throws: c10::ValueError if milestones do not increase or there is not exactly one fewer than schedules
/// Ref:    torch.optim.lr_scheduler.SequentialLR
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);

}  // namespace bellows::optim
