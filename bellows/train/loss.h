#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "bellows/core/model.h"
#include "bellows/data/loader/batch.h"

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

/// What a model reads of a batch: its "image", or where it has none its "tokens" or its "series", which become float32.
at::Tensor model_input(const data::Batch& batch);
/// Mean cross-entropy of model(model_input(batch)) and batch["label"].
LossFn cross_entropy_loss(const Model& model, double label_smoothing = 0);
/// Cross-entropy of model(batch["tokens"]) [N, T, words] with the token that follows each one in its text: the mean over all
/// that have one. Models that say what their head is (models/head.h) never hold all scores at once: nn::linear_cross_entropy.
/// Params: the batch is one of packed texts (data/order/packing.h), with "tokens" and "segment_ids"
LossFn next_token_loss(const Model& model, double label_smoothing = 0);

/// Cross-entropy of scores [N, T, words] of packed texts with the token that follows each one.
struct TokenLoss {
  at::Tensor sum, count;  ///< 0-d, over all that have one
  at::Tensor targets;     ///< [N, T], -100: none
};
TokenLoss next_token_loss(const at::Tensor& scores, const data::Batch& batch);
/// The sum over targets [N, T], -100: none, of a forward pass, without all scores at once where the model says what its head is.
at::Tensor token_loss(const Model& model, const at::Tensor& input, const at::Tensor& targets, double label_smoothing);

}  // namespace bellows::train
