#include "bellows/optim/schedules/schedule.h"

#include <algorithm>
#include <numbers>

#include "bellows/optim/schedules/schedule_check.h"

namespace bellows::optim {

namespace {

/// Falls from 1 to 0 while `t` rises from 0 to 1.
double half_cosine(double t) {
  return (1 + std::cos(std::numbers::pi * t)) / 2;
}

double anneal_between(Anneal anneal, double from, double to, double t) {
  return anneal == Anneal::cos ? to + (from - to) * half_cosine(t) : from + (to - from) * t;
}

/// The fraction of `total` that `step` has reached, at most 1.
double progress(int64_t step, int64_t total) {
  return static_cast<double>(std::min(step, total)) / static_cast<double>(total);
}

}  // namespace

Schedule constant_schedule(double factor) {
  check::number("constant_schedule", "factor", factor);
  return [factor](int64_t) { return factor; };
}

Schedule linear_warmup(int64_t warmup_steps, Schedule then) {
  check::count("linear_warmup", "warmup_steps", warmup_steps, 0);
  check::callable("linear_warmup", then);
  return [warmup_steps, then = std::move(then)](int64_t step) {
    const double factor = then(step);
    return step < warmup_steps ? factor * static_cast<double>(step + 1) / static_cast<double>(warmup_steps) : factor;
  };
}

Schedule constant_lr(double factor, int64_t total_steps) {
  check::number("constant_lr", "factor", factor);
  check::count("constant_lr", "total_steps", total_steps, 0);
  return [=](int64_t step) { return step < total_steps ? factor : 1; };
}

Schedule step_lr(int64_t step_size, double gamma) {
  check::count("step_lr", "step_size", step_size);
  check::number("step_lr", "gamma", gamma);
  return [=](int64_t step) { return std::pow(gamma, step / step_size); };
}

Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma) {
  check::increasing("multi_step_lr", milestones);
  check::number("multi_step_lr", "gamma", gamma);
  return [milestones = std::move(milestones), gamma](int64_t step) {
    return std::pow(gamma, std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin());
  };
}

Schedule exponential_lr(double gamma) {
  check::number("exponential_lr", "gamma", gamma);
  return [gamma](int64_t step) { return std::pow(gamma, step); };
}

Schedule linear_lr(double start_factor, double end_factor, int64_t total_steps) {
  check::number("linear_lr", "start_factor", start_factor);
  check::number("linear_lr", "end_factor", end_factor);
  check::count("linear_lr", "total_steps", total_steps);
  return [=](int64_t step) { return start_factor + (end_factor - start_factor) * progress(step, total_steps); };
}

Schedule polynomial_lr(int64_t total_steps, double power, double min_factor) {
  check::count("polynomial_lr", "total_steps", total_steps);
  check::number("polynomial_lr", "power", power);
  check::number("polynomial_lr", "min_factor", min_factor);
  return [=](int64_t step) { return min_factor + (1 - min_factor) * std::pow(1 - progress(step, total_steps), power); };
}

Schedule inverse_sqrt_lr(int64_t timescale) {
  check::count("inverse_sqrt_lr", "timescale", timescale);
  return
      [t = static_cast<double>(timescale)](int64_t step) { return 1 / std::sqrt((static_cast<double>(step) + t) / t); };
}

Schedule cosine_annealing_lr(int64_t t_max, double min_factor) {
  check::count("cosine_annealing_lr", "t_max", t_max);
  check::number("cosine_annealing_lr", "min_factor", min_factor);
  return [=](int64_t step) {
    // The period is 2 t_max. Reducing the angle keeps the cosine exact after millions of steps.
    return anneal_between(Anneal::cos, 1, min_factor,
                          static_cast<double>(step % (2 * t_max)) / static_cast<double>(t_max));
  };
}

Schedule cosine_lr(int64_t total_steps, double cycles, double min_factor) {
  check::count("cosine_lr", "total_steps", total_steps);
  check::number("cosine_lr", "cycles", cycles);
  check::number("cosine_lr", "min_factor", min_factor);
  return [=](int64_t step) {
    return anneal_between(Anneal::cos, 1, min_factor, 2 * cycles * progress(step, total_steps));
  };
}

Schedule cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult, double min_factor) {
  check::count("cosine_annealing_warm_restarts", "t_0", t_0);
  check::count("cosine_annealing_warm_restarts", "t_mult", t_mult);
  check::number("cosine_annealing_warm_restarts", "min_factor", min_factor);
  return [=](int64_t step) {
    int64_t period = t_0;
    if (t_mult == 1) {
      step %= period;
    } else {
      for (; step >= period; period *= t_mult) step -= period;
    }
    return anneal_between(Anneal::cos, 1, min_factor, static_cast<double>(step) / static_cast<double>(period));
  };
}

Schedule swa_lr(const SwaLrOptions& options, Schedule before) {
  check::count("swa_lr", "start", options.start, 0);
  check::count("swa_lr", "anneal_steps", options.anneal_steps, 0);
  check::number("swa_lr", "factor", options.factor);
  check::callable("swa_lr", before);
  return [o = options, before = std::move(before)](int64_t step) {
    const double from = before(std::min(step, o.start));
    if (step < o.start) return from;
    const double t = o.anneal_steps == 0 ? 1 : progress(step - o.start, o.anneal_steps);
    return anneal_between(o.anneal, from, o.factor, t);
  };
}

// --- Cycles: rate and momentum change in opposite directions

namespace {

/// One phase of a cycle: its end, and both values there.
struct Leg {
  double end_step, lr, momentum;
};

struct OneCycle {
  std::vector<Leg> legs;  // the first is the start and has no length
  OneCycleOptions options;

  /// Interpolates the value `of` at `step` between two legs.
  double at(int64_t step, double Leg::*of) const {
    TORCH_CHECK_VALUE(step <= options.total_steps, "one_cycle_lr: step ", step,
                      " is beyond total_steps = ", options.total_steps,
                      ". Set total_steps to the number of steps of the whole run.");
    const double s = static_cast<double>(std::min(step, options.total_steps - 1));
    size_t i = 1;
    while (i + 1 < legs.size() && s > legs[i].end_step) ++i;
    const double start = legs[i - 1].end_step, length = legs[i].end_step - start;
    const double t = length > 0 ? (s - start) / length : 1;
    return anneal_between(options.anneal, legs[i - 1].*of, legs[i].*of, t);
  }
};

OneCycle legs_of(const OneCycleOptions& o) {
  const auto total = static_cast<double>(o.total_steps);
  const double low = 1 / o.div_factor, end = low / o.final_div_factor, rise = o.pct_start * total - 1;
  OneCycle result{{{0, low, o.max_momentum}, {rise, 1, o.base_momentum}}, o};
  if (o.three_phase) result.legs.push_back({2 * rise, low, o.max_momentum});
  result.legs.push_back({total - 1, end, o.max_momentum});
  return result;
}

struct Cyclic {
  CyclicOptions options;

  /// Position of the rate between its lowest and highest value, from 0 to 1.
  double height(int64_t step) const {
    const auto up = static_cast<double>(options.step_size_up), down = static_cast<double>(options.step_size_down);
    const int64_t period = options.step_size_up + options.step_size_down, cycle = step / period;
    const auto within = static_cast<double>(step % period);
    const double triangle = within <= up ? within / up : (up + down - within) / down;
    if (options.mode == CyclicMode::triangular2)
      return std::ldexp(triangle, -static_cast<int>(std::min(cycle, int64_t{2000})));
    return options.mode == CyclicMode::exp_range ? triangle * std::pow(options.gamma, step) : triangle;
  }
};

void check_momenta(const char* where, double base, double max) {
  check::number(where, "base_momentum", base, 0, 1);
  check::number(where, "max_momentum", max, 0, 1);
}

}  // namespace

GroupSchedule one_cycle_lr(const OneCycleOptions& options) {
  check::count("one_cycle_lr", "total_steps", options.total_steps);
  check::number("one_cycle_lr", "pct_start", options.pct_start, 0, 1);
  TORCH_CHECK_VALUE(options.div_factor > 0 && options.final_div_factor > 0,
                    "one_cycle_lr: expected div_factor and final_div_factor above 0, got ", options.div_factor, " and ",
                    options.final_div_factor, ".");
  if (options.cycle_momentum) check_momenta("one_cycle_lr", options.base_momentum, options.max_momentum);
  const OneCycle cycle = legs_of(options);
  GroupSchedule result{[cycle](int64_t step) { return cycle.at(step, &Leg::lr); }};
  if (options.cycle_momentum) result.momentum = [cycle](int64_t step) { return cycle.at(step, &Leg::momentum); };
  return result;
}

GroupSchedule cyclic_lr(const CyclicOptions& options) {
  check::number("cyclic_lr", "base_factor", options.base_factor, 0, 1);
  check::count("cyclic_lr", "step_size_up", options.step_size_up);
  check::count("cyclic_lr", "step_size_down", options.step_size_down, 0);
  check::number("cyclic_lr", "gamma", options.gamma);
  if (options.cycle_momentum) check_momenta("cyclic_lr", options.base_momentum, options.max_momentum);
  Cyclic cycle{options};
  if (options.step_size_down == 0) cycle.options.step_size_down = options.step_size_up;
  GroupSchedule result{
      [cycle, low = options.base_factor](int64_t step) { return low + (1 - low) * cycle.height(step); }};
  if (options.cycle_momentum) {
    result.momentum = [cycle, o = options](int64_t step) {
      return o.max_momentum - (o.max_momentum - o.base_momentum) * cycle.height(step);
    };
  }
  return result;
}

}  // namespace bellows::optim
