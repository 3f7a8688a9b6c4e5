#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/amp/policy.h"
#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/data/dataset.h"
#include "bellows/train/loss.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

/// The objects of a training run.
struct Job {
  Recipe recipe;
  Model model;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;  ///< all of them step after each backward
  LossFn loss;
  data::Dataset train;
  std::optional<data::Dataset> eval;
  std::string note{};  ///< describes the held-out part of the training data; "" if there is none
  /// The ranks in this training job. Each rank has a job with the same settings and the complete data; a batch is
  /// divided among all ranks. Empty: this process only.
  std::optional<comm::Group> ranks{};
  Task task{};  ///< used for evaluation
  models::InputKind input = models::InputKind::image;
};

/// Creates a job from a recipe. It seeds all generators, creates the model by name and loads its weights. It moves the
/// model to the device and memory layout and applies the precision. Then it creates the optimizer, opens the data and
/// selects the loss.
/// Throws:   c10::ValueError if the model is unknown (the message suggests the nearest name), the device does not
///           exist, or data or weights cannot be used
Job make_job(const Recipe& recipe);
/// Like make_job(recipe), from a resolved recipe. The generators are not seeded.
Job make_job(const ResolvedJob& resolved);

// The parts of make_job(), for callers that create the rest themselves. data/data_assembly.h opens the data, loss.h has
// the losses.

/// Creates the model by name, with weights, on the device and in the memory layout of the recipe.
Model make_model(const ResolvedJob& job);
/// Moves a model to the recipe's device and memory layout. Its parameters stay the same objects.
void place_model(const Recipe& recipe, const Model& model);
/// Creates the optimizer, with fp32 master weights if the recipe's precision uses low-precision weights.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, const Model& model);
/// Passes the unrounded weights to the optimizer as its master weights.
void keep_masters(torch::optim::Optimizer& optimizer, const amp::MasterWeights& masters);
/// The policy of the recipe's `precision` and `amp_level`.
amp::Policy precision_policy(const Recipe& recipe);

}  // namespace bellows::train
