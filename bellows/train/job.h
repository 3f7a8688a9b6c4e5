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

namespace bellows::train {

/// Everything that one training run works with.
struct Job {
  Recipe recipe;
  Model model;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;  ///< all of them step after each backward
  LossFn loss;
  data::Dataset train;
  std::optional<data::Dataset> eval;
  std::string note{};  ///< for people: what of the training data was held out; "": nothing
  /// Who train together: each rank has such a job, made alike, with the whole data; a batch is that of all ranks
  /// together. Nothing: this process alone.
  std::optional<comm::Group> ranks{};
};

/// Makes all of it from a recipe: seeds every generator, makes the model by its name, loads weights, moves it to the
/// device, into the memory layout and under the precision, makes the optimizer, opens the data. The loss is
/// cross-entropy with the label, or with the next token.
/// Throws:   c10::ValueError – unknown model (nearest match), device that is not there, data or weights that cannot
///           be used
Job make_job(const Recipe& recipe);

// The parts of make_job(), for those who bring the rest themselves; data/data_assembly.h opens the data, loss.h has the losses.

/// The model by its name, with weights, on the device, in the memory layout.
/// Params: info – of the data; gives the channels of pictures, and the number of classes where the recipe has 0
Model make_model(const Recipe& recipe, const data::DatasetInfo& info = {});
/// Moves a model to the recipe's device and into its memory layout. Its parameters stay the same objects.
void place_model(const Recipe& recipe, const Model& model);
/// Low-precision weights get fp32 masters in the optimizer where the recipe's precision has them.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, const Model& model);
/// Gives the optimizer the weights as they were before they were rounded.
void keep_masters(torch::optim::Optimizer& optimizer, const amp::MasterWeights& masters);
/// The recipe's `precision` and `precision_level`.
amp::Policy precision_policy(const Recipe& recipe);

}  // namespace bellows::train
