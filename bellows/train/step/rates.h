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

/// The learning rate and momentum of each step: warm-up, then the recipe's schedule over its epochs. During batch-size
/// warm-up, rates scale linearly with the batch size.
/// Numerics: rates are functions of the step; those of `plateau` also depend on evaluations, which state() includes
class Rates {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

  /// The current rates of the groups become the base rates.
  Rates(const Recipe& recipe, Growth growth, Optimizers optimizers);

  /// Sets the groups' rates if they differ from those of the last step. So rates that the user sets meanwhile stay
  /// until the schedule changes.
  void set(int64_t step, int64_t epoch);
  /// Passes the loss to `plateau`; has no other effect.
  void note_evaluation(double loss);

  /// The rates that the groups have now, and the state of `plateau`.
  NamedTensors state() const;
  /// Call it after the optimizers were restored with the rates of that state.
  void restore(const NamedTensors& state);
  /// Assumes that the groups have their base rates again, so that the next set() sets all of them.
  void forget() { factor_ = std::numeric_limits<double>::quiet_NaN(), momentum_.reset(); }

 private:
  double factor(int64_t step, int64_t epoch) const;
  std::optional<double> momentum(int64_t step) const;

  Growth growth_;
  Optimizers optimizers_;
  optim::GroupSchedule schedule_;
  std::optional<optim::ReduceLrOnPlateau> plateau_;
  std::vector<std::vector<double>> base_lr_;  ///< by optimizer and group
  double factor_ = 1;                         ///< factor that is set now
  std::optional<double> momentum_;
  double full_batch_;
  bool one_cycle_;
  int64_t total_steps_;
};

}  // namespace bellows::train
