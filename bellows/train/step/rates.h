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

/// The learning rate and momentum of every step: the recipe's schedule over its epochs, behind its warm-up, times what
/// a smaller batch needs while batches grow (linear rule).
/// Numerics: rates are functions of the step; `plateau` also of the evaluations, and that is state()
class Rates {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

  /// The rates that the groups have now are the base rates.
  Rates(const Recipe& recipe, Growth growth, Optimizers optimizers);

  /// Sets the groups' rates where they differ from the last step's: rates that the user set meanwhile stay, as long as
  /// the schedule does not move.
  void set(int64_t step, int64_t epoch);
  /// Feeds `plateau`; nothing else changes.
  void note_evaluation(double loss);

  /// What is set in the groups now, and the state of `plateau`.
  NamedTensors state() const;
  /// The optimizers came back with the rates of that state.
  void restore(const NamedTensors& state);
  /// The groups have their base rates again: the next set() sets them all.
  void forget() { factor_ = std::numeric_limits<double>::quiet_NaN(), momentum_.reset(); }

 private:
  double factor(int64_t step, int64_t epoch) const;
  std::optional<double> momentum(int64_t step) const;

  Growth growth_;
  Optimizers optimizers_;
  optim::GroupSchedule schedule_;
  std::optional<optim::ReduceLrOnPlateau> plateau_;
  std::vector<std::vector<double>> base_lr_;  ///< by optimizer and group
  double factor_ = 1;                         ///< what is set now
  std::optional<double> momentum_;
  double full_batch_;
  bool one_cycle_;
  int64_t total_steps_;
};

}  // namespace bellows::train
