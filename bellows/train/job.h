#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/amp/policy.h"
#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/data/dataset.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// What the forward pass of one batch gives. A loss alone converts to it: the mean over the batch's samples.
struct StepOutput {
  StepOutput(at::Tensor the_loss, at::Tensor the_predictions = {})
      : loss(std::move(the_loss)), predictions(std::move(the_predictions)) {}
  /// A loss that is the sum over `count` parts, such as the tokens that are no padding. Batches without a part are
  /// welcome.
  static StepOutput sum(at::Tensor loss_sum, at::Tensor count) {
    StepOutput output(std::move(loss_sum));
    output.count = std::move(count);
    output.is_sum = true;
    return output;
  }
  at::Tensor loss;         ///< 0-d; backward() starts from it
  at::Tensor predictions;  ///< scores [N, C] for the training accuracy; undefined: it is not measured
  at::Tensor count;        ///< 0-d, what the loss is the mean over; undefined: the samples of the batch
  bool is_sum = false;     ///< the loss is a sum, and becomes a mean when it is divided by the step's whole count
};
using LossFn = std::function<StepOutput(const data::Batch& batch)>;

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

// The parts of make_job(), for those who bring the rest themselves.

/// Training data as the recipe's model reads it, shuffled, in batches. Which samples these are says data_split.h.
/// - Pictures: scaled, augmented, normalised by their own mean and std.
/// - Texts: tokenized, cut, and padded with 0 to the longest of the batch, as "tokens" [N, T]; for models of the next
///   token packed, rows of several texts: "tokens" and "segment_ids" [N, T].
/// - Series: "series" [N, T, C], filled up with NaN.
data::Dataset open_train_data(const Recipe& recipe);
/// Held-out data: `eval_data`; or, of a folder, the split "test" (else "val", "valid", "validation"), or what is held
/// out of one without. Nothing where `data` names files, and `eval_data` nothing.
std::optional<data::Dataset> open_eval_data(const Recipe& recipe);
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
/// What a model reads of a batch: its "image", or where it has none its "tokens" or its "series", which become float32.
at::Tensor model_input(const data::Batch& batch);
/// Mean cross-entropy of model(model_input(batch)) and batch["label"].
LossFn cross_entropy_loss(const Model& model, double label_smoothing = 0);
/// Cross-entropy of model(batch["tokens"]) [N, T, words] with the token that follows each one in its text: the mean over all
/// that have one. Models that say what their head is (models/head.h) never hold all scores at once: nn::linear_cross_entropy.
/// Params: the batch is one of packed texts (data/order/packing.h), with "tokens" and "segment_ids"
LossFn next_token_loss(const Model& model, double label_smoothing = 0);

}  // namespace bellows::train
