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
  double suggested = 0;   ///< a tenth of the rate with the smallest smoothed loss; 0: the loss does not fall
};

/// Trains with learning rates that increase exponentially from step to step, and suggests a rate. The recipe's schedule
/// and warm-up are not used.
/// Cost:   at most `steps` training steps
/// Throws: c10::ValueError if an option is out of range; exceptions of train::make_job()
/// Ref:    arXiv:1506.01186; lr_find() of fastai
LrRange lr_range_test(train::Recipe recipe, const LrRangeOptions& options = {});

/// Returns a tenth of the rate at which the smoothed loss is smallest. The loss is smallest just before training diverges,
/// so that rate itself is too large. 0: the loss does not fall.
/// Ref: fastai.callback.schedule.minimum
double suggested_lr(const std::vector<LrRangeStep>& steps);

}  // namespace bellows::tune
