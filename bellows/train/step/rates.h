#pragma once

#include <torch/optim/optimizer.h>

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/schedules/lr_scheduler.h"
#include "bellows/train/step/growth.h"

namespace bellows::train {

struct Recipe;

/// The learning rate and momentum of each step. A warm-up is followed by the recipe's schedule over the epochs of the
/// run. During batch-size warm-up, learning rates are proportional to the batch size.
/// Numerics: rates depend only on the step. Rates of `plateau` also depend on past evaluations, which state() includes
class Rates {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

  /// Uses the current learning rates of the optimizers' groups as base rates.
  Rates(const Recipe& recipe, Growth growth, Optimizers optimizers);

  /// Sets the groups' rates if the schedule's rates changed since the last step. Rates that you set yourself therefore
  /// stay until the schedule changes.
  void set(int64_t step, int64_t epoch);
  /// Passes the loss of an evaluation to the `plateau` schedule. Other schedules ignore it.
  void note_evaluation(double loss);
  /// Gives the optimizers the rates that they had before training.
  void set_base_rates();

  /// Returns the current factor and momentum, and the state of `plateau`.
  NamedTensors state() const;
  /// Call this function after the optimizers were restored with the rates of the same checkpoint.
  void restore(const NamedTensors& state);
  /// Call this function if the groups have their base rates again. The next set() then sets all rates.
  void forget() { factor_ = std::numeric_limits<double>::quiet_NaN(), momentum_.reset(); }

 private:
  double factor(int64_t step, int64_t epoch) const;
  std::optional<double> momentum(int64_t step) const;

  Growth growth_;
  Optimizers optimizers_;
  optim::GroupSchedule schedule_;
  std::optional<optim::ReduceLrOnPlateau> plateau_;
  std::vector<std::vector<double>> base_lr_;  ///< by optimizer and group
  double factor_ = 1;                         ///< factor of the current rates
  std::optional<double> momentum_;
  double full_batch_;
  bool one_cycle_;
  int64_t total_steps_;
};

}  // namespace bellows::train
