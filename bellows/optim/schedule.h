#pragma once

#include <cstdint>
#include <functional>

namespace bellows::optim {

/// What the base learning rate of every parameter group is multiplied by, as a pure function of the number of steps
/// already taken: a schedule needs no state of its own, and a run that is resumed goes on with the same rates.
/// Ref:      torch.optim.lr_scheduler.LambdaLR
using Schedule = std::function<double(int64_t step)>;

/// The same factor at every step.
Schedule constant_schedule(double factor = 1);

/// Rises in a straight line over the first `warmup_steps` steps: step s < warmup_steps runs at then(s) · (s + 1) /
/// warmup_steps.
/// Throws:   c10::ValueError – negative warmup_steps
/// Ref:      arXiv:1706.02677
Schedule linear_warmup(int64_t warmup_steps, Schedule then = constant_schedule());

}  // namespace bellows::optim
