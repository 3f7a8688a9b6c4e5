#include "bellows/optim/schedules/schedule_compose.h"

#include <algorithm>

#include "bellows/optim/schedules/schedule_check.h"

namespace bellows::optim {

namespace {

double warmup_factor(const WarmupOptions& o, int64_t step) {
  const double t = static_cast<double>(step) / static_cast<double>(o.steps);
  switch (o.shape) {
    case Warmup::constant:
      return o.start_factor;
    case Warmup::exponential:
      return std::pow(o.start_factor, 1 - t);
    default:
      return o.start_factor + (1 - o.start_factor) * t;
  }
}

}  // namespace

Schedule warmup(const WarmupOptions& options, Schedule then) {
  check::count("warmup", "steps", options.steps, 0);
  check::number("warmup", "start_factor", options.start_factor, 0, 1);
  TORCH_CHECK_VALUE(
      options.shape != Warmup::exponential || options.start_factor > 0,
      "warmup: expected a start_factor above 0 for an exponential warm-up, because 0 cannot grow exponentially.");
  check::callable("warmup", then);
  return [o = options, then = std::move(then)](int64_t step) {
    const double behind = then(o.under ? step : std::max(step - o.steps, int64_t{0}));
    return step < o.steps ? warmup_factor(o, step) * behind : behind;
  };
}

Schedule chained(std::vector<Schedule> schedules) {
  TORCH_CHECK_VALUE(!schedules.empty(), "chained: expected at least one schedule, got none.");
  for (const Schedule& schedule : schedules) check::callable("chained", schedule);
  return [schedules = std::move(schedules)](int64_t step) {
    double factor = 1;
    for (const Schedule& schedule : schedules) factor *= schedule(step);
    return factor;
  };
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones) {
  TORCH_CHECK_VALUE(!schedules.empty() && schedules.size() == milestones.size() + 1,
                    "sequential: expected one more schedule than milestones, got ", schedules.size(), " and ",
                    milestones.size(), ".");
  check::increasing("sequential", milestones);
  for (const Schedule& schedule : schedules) check::callable("sequential", schedule);
  return [schedules = std::move(schedules), milestones = std::move(milestones)](int64_t step) {
    const auto index =
        static_cast<size_t>(std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin());
    return schedules[index](index == 0 ? step : step - milestones[index - 1]);
  };
}

}  // namespace bellows::optim
