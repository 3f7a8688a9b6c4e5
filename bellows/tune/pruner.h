#pragma once

#include <cstdint>
#include <vector>

#include "bellows/tune/trial.h"

namespace bellows::tune {

/// Asynchronous successive halving (ASHA). A trial reaches a rung when it has run `first_rung`, `first_rung` ×
/// `factor`, `first_rung` × `factor`², … steps. There it is compared with other trials, and continues only if it is
/// among the best 1/`factor` of them. The others are all trials that reached this rung before. If the objective is a
/// time or a cost, they are all trials that had reported a value after the same time: a step of one trial can take as
/// long as several of another.
/// Ref: optuna.pruners.SuccessiveHalvingPruner; arXiv:1810.05934
struct HalvingOptions {
  int64_t first_rung = 1;
  int64_t factor = 3;
};

/// Returns whether a running trial should end.
/// Params: trials – all trials. The reports of trials that are still running count, too
///         number – the trial that reported its last value now
/// Throws: c10::ValueError if an option is out of range
/// Numerics: for reports without `spent`, the decisions are those of Optuna (tests/tune/sampler_test.cpp)
bool should_prune(const HalvingOptions& options, const std::vector<Trial>& trials, int64_t number);

}  // namespace bellows::tune
