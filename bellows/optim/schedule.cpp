#include "bellows/optim/schedule.h"

#include <c10/util/Exception.h>

namespace bellows::optim {

Schedule constant_schedule(double factor) {
  return [factor](int64_t) { return factor; };
}

Schedule linear_warmup(int64_t warmup_steps, Schedule then) {
  TORCH_CHECK_VALUE(warmup_steps >= 0, "linear_warmup: expected warmup_steps of at least 0, got ", warmup_steps, ".");
  return [warmup_steps, then = std::move(then)](int64_t step) {
    const double factor = then(step);
    return step < warmup_steps ? factor * static_cast<double>(step + 1) / static_cast<double>(warmup_steps) : factor;
  };
}

}  // namespace bellows::optim
