#pragma once

#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// How a warm-up rises from start_factor to 1.
enum class Warmup {
  linear,       ///< in a straight line
  constant,     ///< stays at start_factor, then jumps
  exponential,  ///< by the same ratio each step; start_factor above 0
};

/// Params:   steps – of the warm-up; step s < steps runs at the rise's value at s / steps
///           start_factor – at step 0
///           under – false: the schedule behind begins at the end of the warm-up, as in SequentialLR and transformers;
///           true: it runs from step 0 and is multiplied, as in ChainedScheduler
struct WarmupOptions {
  int64_t steps = 0;
  double start_factor = 0;
  Warmup shape = Warmup::linear;
  bool under = false;
};

/// A warm-up in front of any schedule. 0 steps: none.
/// Throws:   c10::ValueError – negative steps, a start factor outside 0 to 1
/// Ref:      arXiv:1706.02677; transformers' get_*_schedule_with_warmup; torchvision's references (LinearLR and
///           ConstantLR in a SequentialLR)
Schedule warmup(const WarmupOptions& options, Schedule then = constant_schedule());

/// The product of all. Equal to PyTorch where each multiplies the rate; PyTorch's schedules with a lowest rate other
/// than 0 add to what another one left, which is not a function of the step.
/// Throws:   c10::ValueError – no schedule, or an empty one
/// Ref:      torch.optim.lr_scheduler.ChainedScheduler
Schedule chained(std::vector<Schedule> schedules);

/// One after the other: the i-th begins, with its own step 0, at milestones[i - 1].
/// Throws:   c10::ValueError – milestones that do not increase, or are not one fewer than the schedules
/// Ref:      torch.optim.lr_scheduler.SequentialLR
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);

}  // namespace bellows::optim
