#pragma once

#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// How a warm-up rises from start_factor to 1.
enum class Warmup {
  linear,       ///< linearly
  constant,     ///< stays at start_factor, then jumps to 1
  exponential,  ///< multiplied by the same ratio in each step; start_factor must be above 0
};

/// Params: steps – number of warm-up steps; step s has the warm-up's value at s / steps
///         start_factor – value at step 0
///         under – false: `then` starts when the warm-up ends, as in SequentialLR and transformers; true: `then` starts
///         at step 0 and is multiplied by the warm-up, as in ChainedScheduler
struct WarmupOptions {
  int64_t steps = 0;
  double start_factor = 0;
  Warmup shape = Warmup::linear;
  bool under = false;
};

/// Adds a warm-up before any schedule. If `steps` is 0, there is no warm-up.
/// Throws: c10::ValueError if steps is negative, or if start_factor is outside [0, 1]
/// Ref:    arXiv:1706.02677; transformers' get_*_schedule_with_warmup; torchvision's references (LinearLR and
///         ConstantLR in a SequentialLR)
Schedule warmup(const WarmupOptions& options, Schedule then = constant_schedule());

/// The product of all schedules. The result equals PyTorch's if each schedule multiplies the rate. PyTorch's schedules
/// with a minimum rate other than 0 also depend on the previous rate, so they are not functions of the step.
/// Throws: c10::ValueError if there is no schedule, or if a schedule is empty
/// Ref:    torch.optim.lr_scheduler.ChainedScheduler
Schedule chained(std::vector<Schedule> schedules);

/// Runs schedules one after another. Schedule i starts at milestones[i - 1] with its own step 0.
/// Throws: c10::ValueError if milestones do not increase, or if their number is not the number of schedules minus one
/// Ref:    torch.optim.lr_scheduler.SequentialLR
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);

}  // namespace bellows::optim
