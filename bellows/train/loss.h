#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "bellows/core/model.h"
#include "bellows/data/loader/batch.h"
#include "bellows/train/task.h"

namespace bellows::train {

/// The result of the forward pass of one batch. A loss converts to it implicitly, as the mean over the batch's samples.
struct StepOutput {
  StepOutput(at::Tensor the_loss, at::Tensor the_predictions = {})
      : loss(std::move(the_loss)), predictions(std::move(the_predictions)) {}
  /// A loss that is the sum over `count` parts, such as the non-padding tokens. Batches without such parts are allowed.
  static StepOutput sum(at::Tensor loss_sum, at::Tensor count) {
    StepOutput output(std::move(loss_sum));
    output.count = std::move(count);
    output.is_sum = true;
    return output;
  }
  at::Tensor loss;         ///< 0-d; backward() starts from it
  at::Tensor predictions;  ///< logits [N, C] for the training accuracy; undefined: not measured
  at::Tensor count;        ///< 0-d, number of parts in the mean; undefined: the samples of the batch
  bool is_sum = false;     ///< the loss is a sum; the step divides it by the total count of its batches
};
using LossFn = std::function<StepOutput(const data::Batch& batch)>;

/// The input of a model with one input: the batch's "image", else its "tokens", "series" or "features". Series and
/// features are converted to float32.
at::Tensor model_input(const data::Batch& batch);
/// The inputs of a model in their order: the batch's tensors of these names, or model_input() for a model with one
/// input. Arrays of 8-bit images [N, H, W, C] become float32 [N, C, H, W] in [0, 1]; other numbers become float32.
/// Throws: c10::ValueError if the batch has no tensor for a required input
std::vector<at::Tensor> model_inputs(const Model& model, const data::Batch& batch);
/// The model's first output for a batch.
at::Tensor predict(const Model& model, const data::Batch& batch);
/// The loss function of a task.
LossFn loss_function(const Model& model, const Task& task);
/// The mean cross-entropy of model(model_input(batch)) and batch["label"].
LossFn cross_entropy_loss(const Model& model, double label_smoothing = 0);
/// The cross-entropy of model(batch["tokens"]) [N, T, words] with the next token of the same text: the mean over all
/// tokens that have a next one. If the model defines its head (models/head.h), nn::linear_cross_entropy computes the
/// loss without materializing all logits.
/// Params: batch – of packed texts (data/order/packing.h), with "tokens" and "segment_ids"
LossFn next_token_loss(const Model& model, double label_smoothing = 0);

/// The cross-entropy of logits [N, T, words] of packed texts with the next tokens.
struct TokenLoss {
  at::Tensor sum, count;  ///< 0-d, over all tokens that have a next one
  at::Tensor targets;     ///< [N, T], -100: none
};
TokenLoss next_token_loss(const at::Tensor& scores, const data::Batch& batch);
/// The sum over targets [N, T] (-100: none) of a forward pass. It does not materialize all logits if the model defines
/// its head.
at::Tensor token_loss(const Model& model, const at::Tensor& input, const at::Tensor& targets, double label_smoothing);

}  // namespace bellows::train
