#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bench/accuracy/manual_pages.h"
#include "bench/support/bench.h"

namespace bellows::bench {

/// A small model that is trained to the end, and its data.
struct AccuracyTask {
  std::string title;
  Model (*make)();
  Texts train, held_out;  ///< tokens are images here, too
  int64_t epochs;
  double lr;  ///< the highest rate, see rate_at()
};

/// A ResNet on the digits.
AccuracyTask digits_task(const Options& options, int64_t epochs);
/// A small DistilBERT on manual pages from the folder in the option `pages`.
AccuracyTask text_task(const Options& options, int64_t epochs);

/// Returns the learning rate after a share of all steps. It rises for a tenth of them, and falls to 0, because seeds
/// differ more than the methods do if the rate stays high.
double rate_at(double highest, double done);

}  // namespace bellows::bench
