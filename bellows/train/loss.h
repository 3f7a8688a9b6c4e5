#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/data/loader/batch.h"
#include "bellows/train/task.h"

namespace bellows::train {

/// The result of the forward pass of one batch. A loss tensor converts implicitly to a StepOutput. It must then be the
/// mean over the samples of the batch.
struct StepOutput {
  StepOutput(at::Tensor the_loss, at::Tensor the_predictions = {})
      : loss(std::move(the_loss)), predictions(std::move(the_predictions)) {}
  /// Creates an output whose loss is a sum over `count` items, such as the non-padding tokens. `count` may be 0 for a
  /// batch.
  static StepOutput sum(at::Tensor loss_sum, at::Tensor count) {
    StepOutput output(std::move(loss_sum));
    output.count = std::move(count);
    output.is_sum = true;
    return output;
  }
  at::Tensor loss;         ///< 0-d; backward() starts from it
  at::Tensor predictions;  ///< logits [N, C] for the training accuracy; undefined if the accuracy is not measured
  at::Tensor count;        ///< 0-d, number of items in the loss; if undefined, the number of samples
  bool is_sum = false;     ///< the loss is a sum; the step divides it by the total count of its batches
};
using LossFn = std::function<StepOutput(const data::Batch& batch)>;

/// A loss that is computed from the output of the model, as the last stage of a pipeline needs it. A LossFn runs the
/// model itself.
struct OutputLoss {
  /// Returns the mean over the items of a batch, 0-d.
  /// Params: output – first output of the model
  std::function<at::Tensor(const at::Tensor& output, const data::Batch& batch)> mean;
  /// Returns the number of items of each sample, such as its tokens that have a next token: [N].
  std::function<at::Tensor(const data::Batch& batch)> items;
  explicit operator bool() const { return mean && items; }
};
/// Returns loss_function() in this form.
/// Numerics: the mean over all items of a batch, which equals that of loss_function() except for rounding
OutputLoss output_loss(const Task& task);

/// Returns the input for a model with one input: the first of "image", "tokens", "series" and "features" that the batch
/// contains. Series and features are converted to float32.
at::Tensor model_input(const data::Batch& batch);
/// Returns the inputs for a model, in the model's order. These are the batch's tensors with the names of the inputs, or
/// model_input() for a model with one input. 8-bit image arrays [N, H, W, C] become float32 [N, C, H, W] in [0, 1].
/// int64 arrays stay unchanged, and all other arrays become float32.
/// Throws: c10::ValueError if the batch has no tensor for a required input
std::vector<at::Tensor> model_inputs(const Model& model, const data::Batch& batch);
/// Returns the model's first output.
/// Params: inputs – in the order of the model's inputs
at::Tensor predict(const Model& model, const std::vector<at::Tensor>& inputs);
/// Returns the model's first output for a batch.
at::Tensor predict(const Model& model, const data::Batch& batch);
/// Runs a forward pass and returns the loss of the first output. In training mode, the loss of each auxiliary output
/// (models/vision/auxiliary.h) is multiplied by its weight and added.
/// Params: inputs – in the order of the model's inputs
///         loss_of – returns the loss of an output. It must be a mean if the model has auxiliary outputs
StepOutput model_loss(const Model& model, const std::vector<at::Tensor>& inputs,
                      const std::function<StepOutput(const at::Tensor& output)>& loss_of);
/// Returns the loss function of a task.
LossFn loss_function(const Model& model, const Task& task);
/// Returns a function that computes the mean cross-entropy of model(model_input(batch)) and batch["label"].
LossFn cross_entropy_loss(const Model& model, double label_smoothing = 0);
/// Returns a function that computes the cross-entropy of the logits model(batch["tokens"]) [N, T, V] and the next token
/// of the same text. The loss is the mean over all tokens that have a next token. If the model defines its head
/// (models/head.h), nn::linear_cross_entropy computes the loss without materializing all logits.
/// Params: batch – packed texts (data/order/packing.h) with "tokens" and "segment_ids"
LossFn next_token_loss(const Model& model, double label_smoothing = 0);

/// The cross-entropy of the logits [N, T, V] of packed texts and the next tokens.
struct TokenLoss {
  at::Tensor sum, count;  ///< 0-d; sum of the losses and number of tokens that have a next token
  at::Tensor targets;     ///< [N, T]; -100 if a token has no next token
};
TokenLoss next_token_loss(const at::Tensor& scores, const data::Batch& batch);
/// Runs a forward pass and returns the sum of the cross-entropy over the targets [N, T]. Targets of -100 are ignored.
/// If the model defines its head, the function does not materialize all logits at once.
at::Tensor token_loss(const Model& model, const at::Tensor& input, const at::Tensor& targets, double label_smoothing);

}  // namespace bellows::train
