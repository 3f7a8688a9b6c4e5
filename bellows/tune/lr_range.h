#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/train/recipe/recipe.h"

namespace bellows::tune {

struct LrRangeOptions {
  double low = 1e-6, high = 10;  ///< learning rates of the first and of the last step
  int64_t steps = 100;
};

/// One step of a learning-rate range test.
struct LrRangeStep {
  double lr = 0;
  double loss = 0;
  double smooth_loss = 0;  ///< exponential moving average of the losses, without the bias of its start
};

struct LrRange {
  std::vector<LrRangeStep> steps;
  bool diverged = false;  ///< the loss became infinite or four times as large as its minimum, which ended the test
  double suggested = 0;   ///< rate at which the smoothed loss falls fastest; 0: it does not fall
};

/// Trains with learning rates that increase exponentially from step to step, and finds the rate at which the loss falls
/// fastest. The recipe's schedule and warm-up are not used.
/// Cost:   at most `steps` training steps
/// Throws: c10::ValueError if an option is out of range; exceptions of train::make_job()
/// Ref:    arXiv:1506.01186
LrRange lr_range_test(train::Recipe recipe, const LrRangeOptions& options = {});

/// Returns the rate at which the smoothed loss falls fastest on a logarithmic scale of rates, up to its minimum. 0: it
/// does not fall.
double suggested_lr(const std::vector<LrRangeStep>& steps);

}  // namespace bellows::tune
