#include "bellows/train/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "bellows/data/order/packing.h"
#include "bellows/models/head.h"
#include "bellows/models/vision/auxiliary.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/parallel/tensor/tensor_parallel.h"

namespace bellows::train {

namespace {

/// Converts an array to the form that a floating-point layer reads.
at::Tensor as_numbers(const at::Tensor& array) {
  if (array.scalar_type() == at::kByte && array.dim() == 4) return array.permute({0, 3, 1, 2}).to(at::kFloat).div(255);
  return array.scalar_type() == at::kLong ? array : array.to(at::kFloat);
}

bool has_one_input(const std::vector<ModelInput>& inputs) {
  return std::ranges::count_if(inputs, [](const ModelInput& input) { return !input.optional; }) <= 1;
}

}  // namespace

at::Tensor model_input(const data::Batch& batch) {
  for (const char* name : {"tokens", "series", "features"}) {
    if (batch.contains(name) && !batch.contains("image"))
      return name[0] == 't' ? batch[name] : batch[name].to(at::kFloat);
  }
  return batch["image"];
}

std::vector<at::Tensor> model_inputs(const Model& model, const data::Batch& batch) {
  const std::vector<ModelInput> inputs = model.inputs();
  std::vector<at::Tensor> tensors(inputs.size());
  if (has_one_input(inputs) && !batch.contains(inputs.front().name)) {
    tensors.front() = model_input(batch);
    for (size_t i = 1; i < inputs.size(); ++i) {
      if (batch.contains(inputs[i].name)) tensors[i] = batch[inputs[i].name];
    }
    return tensors;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (batch.contains(inputs[i].name)) tensors[i] = as_numbers(batch[inputs[i].name]);
    TORCH_CHECK_VALUE(tensors[i].defined() || inputs[i].optional, "model \"", model.name(), "\": the batch has no \"",
                      inputs[i].name, "\" for its input of that name.");
  }
  return tensors;
}

at::Tensor predict(const Model& model, const std::vector<at::Tensor>& inputs) {
  return inputs.size() == 1 ? model.forward(inputs.front()) : model.forward_all(inputs).front();
}

at::Tensor predict(const Model& model, const data::Batch& batch) {
  return predict(model, model_inputs(model, batch));
}

StepOutput model_loss(const Model& model, const std::vector<at::Tensor>& inputs,
                      const std::function<StepOutput(const at::Tensor& output)>& loss_of) {
  const double weight = model.training() ? models::auxiliary_weight(model) : 0;
  if (weight == 0) return loss_of(predict(model, inputs));
  const std::vector<at::Tensor> outputs = model.forward_all(inputs);
  StepOutput result = loss_of(outputs.front());
  for (size_t i = 1; i < outputs.size(); ++i) result.loss = result.loss + weight * loss_of(outputs[i]).loss;
  return result;
}

LossFn loss_function(const Model& model, const Task& task) {
  if (task.loss == LossKind::next_token) return next_token_loss(model, task.label_smoothing);
  if (task.classifies_samples()) return cross_entropy_loss(model, task.label_smoothing);
  return [model, task](const data::Batch& batch) {
    return model_loss(model, model_inputs(model, batch), [&](const at::Tensor& output) {
      return StepOutput(task_loss(task, output, batch[task.target]));
    });
  };
}

OutputLoss output_loss(const Task& task) {
  if (task.loss == LossKind::next_token) {
    const auto targets_of = [](const data::Batch& batch) {
      return data::next_tokens(batch["tokens"], batch["segment_ids"]);
    };
    return {.mean =
                [=](const at::Tensor& output, const data::Batch& batch) {
                  // This operator also supports logits that tensor parallelism divides.
                  return at::cross_entropy_loss(output.flatten(0, 1), targets_of(batch).flatten(), {},
                                                at::Reduction::Mean, -100, task.label_smoothing);
                },
            .items = [=](const data::Batch& batch) { return at::sum(targets_of(batch).ne(-100), 1); }};
  }
  return {.mean = [task](const at::Tensor& output,
                         const data::Batch& batch) { return task_loss(task, output, batch[task.target]); },
          .items =
              [task](const data::Batch& batch) {
                const at::Tensor& target = batch[task.target];
                if (task.loss != LossKind::cross_entropy || target.is_floating_point())
                  return at::ones({target.size(0)}, at::kLong);
                return at::sum(target.ne(ignored_class(target)).reshape({target.size(0), -1}), 1);
              }};
}

TokenLoss next_token_loss(const at::Tensor& scores, const data::Batch& batch) {
  const at::Tensor targets = data::next_tokens(batch["tokens"], batch["segment_ids"]);
  return {nn::softmax_cross_entropy(scores, targets, {.reduction = nn::Reduction::sum}), at::sum(targets.ne(-100)),
          targets};
}

at::Tensor token_loss(const Model& model, const at::Tensor& input, const at::Tensor& targets, double label_smoothing) {
  const auto without_scores = [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
    if (parallel::is_divided(weight)) {  // tensor parallelism computes this loss without gathering the logits
      const at::Tensor logits = at::linear(hidden, weight, bias.defined() ? std::optional(bias) : std::nullopt);
      return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum, -100,
                                    label_smoothing);
    }
    return nn::linear_cross_entropy(hidden, weight, bias, targets,
                                    {.label_smoothing = label_smoothing, .reduction = nn::Reduction::sum});
  };
  const at::Tensor loss = models::forward_with_head(model, input, without_scores);
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
    return model_loss(model, model_inputs(model, batch), [&](const at::Tensor& logits) {
      return StepOutput(at::cross_entropy_loss(logits, batch["label"], {}, at::Reduction::Mean, -100, label_smoothing),
                        logits);
    });
  };
}

}  // namespace bellows::train
