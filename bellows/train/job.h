#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/amp/policy.h"
#include "bellows/comm/elastic/elastic_world.h"
#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/data/dataset.h"
#include "bellows/train/loss.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

struct DataPrints;

/// Another model with the architecture of a job's model, and its loss function.
struct Replica {
  Model model;
  LossFn loss;
};

/// The objects of a training run.
struct Job {
  Recipe recipe;
  Model model;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;  ///< all of them step in each training step
  LossFn loss;
  data::Dataset train;
  std::optional<data::Dataset> eval;
  std::string note{};  ///< describes the held-out part of the training data; empty if there is none
  /// The ranks in this training job; empty if there is only this process. Each rank has a job with the same settings
  /// and the complete data, and each batch is divided among the ranks.
  std::optional<comm::Group> ranks{};
  /// Set if ranks can be lost and replaced; `ranks` is then the group of its world.
  std::shared_ptr<comm::ElasticWorld> elastic{};
  /// Set if a state is restored before the first step. Ranks that shard the state then do not send their models.
  bool state_follows = false;
  std::shared_ptr<const DataPrints> prints{};  ///< data_prints() of this job, if they are already known
  Task task{};                                 ///< used for evaluation
  models::InputKind input = models::InputKind::image;
  /// Creates a replica of `model`, on its device and with any weights. Only `data_parallel: dp` needs this function.
  std::function<Replica()> make_replica{};
  /// The same loss as `loss`, for the last stage of a pipeline. Only the mesh axis `pipeline` needs it.
  OutputLoss output_loss{};
  /// Another job with the same model, which takes one step before each step of this job, on its own batches and with its
  /// own loss and optimizers. Each of the two jobs trains only the parameters of its own optimizers, such as the weights
  /// and the architecture in DARTS. Its `eval`, `ranks` and the recipe's keys of runs and output are not used.
  std::shared_ptr<Job> alternate{};
};

/// Creates a job from a recipe:
/// 1. It seeds all generators.
/// 2. It creates the model by name, loads its weights, moves it to the device and memory layout, and applies the
///    precision.
/// 3. It creates the optimizer, opens the data and selects the loss.
/// Throws: c10::ValueError if the model is unknown (the message suggests the nearest name), the device does not exist,
///         or the data or weights cannot be used
Job make_job(const Recipe& recipe);
/// Like make_job(recipe), but from a resolved recipe and without seeding the generators.
Job make_job(const ResolvedJob& resolved);

// Parts of make_job(), for callers that create some of the objects themselves. See also data/data_assembly.h for the
// data and loss.h for the losses.

/// Creates the model by name, loads its weights, and places it on the recipe's device in the recipe's memory layout.
Model make_model(const ResolvedJob& job);
/// Moves a model to the recipe's device and memory layout. The parameters remain the same objects.
void place_model(const Recipe& recipe, const Model& model);
/// Creates the optimizer. If the recipe's precision uses low-precision weights, the optimizer keeps fp32 master
/// weights.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, const Model& model);
/// The same for other parameters.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, std::vector<at::Tensor> parameters);
/// Passes the unrounded weights to the optimizer as its master weights.
void keep_masters(torch::optim::Optimizer& optimizer, const amp::MasterWeights& masters);
/// Returns the policy for the recipe's `precision` and `amp_level`.
amp::Policy precision_policy(const Recipe& recipe);

}  // namespace bellows::train
