#include "bellows/tune/lr_range.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "bellows/optim/state/state.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::tune {

namespace {

constexpr double memory = 0.9;      // of the moving average
constexpr double divergence = 4;    // fastai's lr_find() stops at this multiple of the smallest loss, too
constexpr size_t first_steps = 10;  // before these, the average is too noisy to detect divergence

/// A loss that is not finite is an error of training. Here it only ends the test.
double loss_of_step(train::TrainLoop& loop) {
  try {
    loop.run_steps(1);
    return loop.take_losses().back();
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error&) {
    if (loop.last_loss().defined() && std::isfinite(loop.last_loss().item<double>())) throw;
    return std::nan("");
  }
}

}  // namespace

double suggested_lr(const std::vector<LrRangeStep>& steps) {
  const auto smaller = [](const LrRangeStep& a, const LrRangeStep& b) { return a.smooth_loss < b.smooth_loss; };
  const auto lowest = std::min_element(steps.begin(), steps.end(), smaller);
  return lowest == steps.begin() || lowest == steps.end() ? 0 : lowest->lr / 10;
}

LrRange lr_range_test(train::Recipe recipe, const LrRangeOptions& options) {
  TORCH_CHECK_VALUE(options.low > 0 && options.low < options.high && std::isfinite(options.high),
                    "tune: the learning rates must be positive and increasing, got ", options.low, " to ", options.high,
                    ".");
  TORCH_CHECK_VALUE(options.steps >= 2, "tune: steps must be at least 2, got ", options.steps, ".");
  recipe.lr_schedule = "constant";
  recipe.warmup_epochs = 0;
  recipe.on_nan = "stop";
  train::TrainLoop loop(train::make_job(recipe));
  LrRange result;
  double average = 0, smallest = HUGE_VAL, bias = 1;
  for (int64_t i = 0; i < options.steps && !result.diverged; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(options.steps - 1);
    const double rate = options.low * std::pow(options.high / options.low, share);
    for (const auto& optimizer : loop.job().optimizers) optim::set_lr(*optimizer, rate);
    const double loss = loss_of_step(loop);
    average = memory * average + (1 - memory) * loss, bias *= memory;
    const double smooth = average / (1 - bias);
    result.diverged = !std::isfinite(loss) || (result.steps.size() >= first_steps && smooth > divergence * smallest);
    if (std::isfinite(loss)) result.steps.push_back({rate, loss, smooth});
    smallest = std::min(smallest, smooth);
  }
  result.suggested = suggested_lr(result.steps);
  return result;
}

}  // namespace bellows::tune
