#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/optim/lr_scheduler.h"
#include "bellows/train/growth.h"

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
  /// Says that the optimizers came back from a checkpoint with the rates of that step.
  void resumed_at(int64_t step, int64_t epoch);
  /// Feeds `plateau`; nothing else changes.
  void note_evaluation(double loss);

  NamedTensors state() const;
  void restore(const NamedTensors& state);

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
