#include "bellows/train/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include "bellows/data/order/packing.h"
#include "bellows/models/head.h"
#include "bellows/nn/cross_entropy.h"

namespace bellows::train {

at::Tensor model_input(const data::Batch& batch) {
  for (const char* name : {"tokens", "series"}) {
    if (batch.contains(name) && !batch.contains("image"))
      return name[0] == 's' ? batch[name].to(at::kFloat) : batch[name];
  }
  return batch["image"];
}

TokenLoss next_token_loss(const at::Tensor& scores, const data::Batch& batch) {
  const at::Tensor targets = data::next_tokens(batch["tokens"], batch["segment_ids"]);
  return {nn::softmax_cross_entropy(scores, targets, {.reduction = nn::Reduction::sum}), at::sum(targets.ne(-100)),
          targets};
}

at::Tensor token_loss(const Model& model, const at::Tensor& input, const at::Tensor& targets, double label_smoothing) {
  const auto without_scores = [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
    return nn::linear_cross_entropy(hidden, weight, bias, targets,
                                    {.label_smoothing = label_smoothing, .reduction = nn::Reduction::sum});
  };
  const at::Tensor loss = models::forward_into(model, input, without_scores);
  if (loss.defined()) return loss;
  return nn::softmax_cross_entropy(model.forward(input), targets,
                                   {.label_smoothing = label_smoothing, .reduction = nn::Reduction::sum});
}

LossFn next_token_loss(const Model& model, double label_smoothing) {
  return [model, label_smoothing](const data::Batch& batch) {
    const at::Tensor targets = data::next_tokens(batch["tokens"], batch["segment_ids"]);
    return StepOutput::sum(token_loss(model, model_input(batch), targets, label_smoothing), at::sum(targets.ne(-100)));
  };
}

LossFn cross_entropy_loss(const Model& model, double label_smoothing) {
  return [model, label_smoothing](const data::Batch& batch) {
    const at::Tensor logits = model.forward(model_input(batch));
    return StepOutput(at::cross_entropy_loss(logits, batch["label"], {}, at::Reduction::Mean, -100, label_smoothing),
                      logits);
  };
}

}  // namespace bellows::train
