#include "bellows/train/step/tensor_ranks.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/shard.h"
#include "bellows/models/blocks.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/recipe/tensor_keys.h"

namespace bellows::train {

namespace {

using parallel::TensorParallel;

parallel::TensorPlan plan_of(const Job& job) {
  if (job.recipe.tensor_plan != "auto") return parse_tensor_plan(job.recipe.tensor_plan);
  try {
    return parallel::tensor_plan(job.model);
  } catch (const c10::ValueError&) {
    throw RecipeError(
        {__func__, __FILE__, __LINE__},
        c10::str("train: tensor_plan = auto, but the parameters of the model \"", job.model.name(),
                 "\" are not named like those of bert, distilbert, gpt or encoder_decoder. Set "
                 "tensor_plan to patterns with styles, such as {\"*.query\": column, \"*.output\": row}."));
  }
}

/// Params: job – with a complete model, which must stay complete if the job is refused
void check_blocks(const Job& job) {
  check_recipe(!job.recipe.sequence_parallel || models::run_blocks_by(job.model, nullptr) > 0,
               "train: sequence_parallel = true, but the model \"", job.model.name(),
               "\" does not define blocks. Set sequence_parallel: false.");
}

TensorParallel divided(const Job& job, const comm::Group& axis) {
  check_new_optimizers(job);
  check_blocks(job);
  return parallel::parallelize(job.model, axis, plan_of(job));
}

/// Only cross-entropy can use divided logits. Params: task – of the job
void check_loss_of(const TensorParallel& layers, const Task& task) {
  TORCH_CHECK_VALUE(
      !layers.has_divided_logits() || task.classifies_samples() || task.loss == LossKind::next_token,
      "train: tensor_plan divides the output layer of the model \"", layers.model().name(),
      "\", but only the losses cross_entropy and next_token support divided outputs. Leave this layer out "
      "of tensor_plan.");
}

/// The loss function, which computes divided layers.
LossFn divided_loss(LossFn loss, TensorParallel layers, Task task) {
  return [loss = std::move(loss), layers = std::move(layers), task = std::move(task)](const data::Batch& batch) {
    std::vector<at::Tensor> inputs;
    for (const auto& [name, tensor] : batch.tensors()) inputs.push_back(tensor);
    std::optional<StepOutput> output;
    layers.run(inputs, [&] { output = loss(batch); });
    check_loss_of(layers, task);
    output->predictions = layers.complete_logits(output->predictions);
    return *output;
  };
}

class CompleteLogits final : public ModelWrapper {
 public:
  explicit CompleteLogits(TensorParallel layers) : ModelWrapper(layers.model()), layers_(std::move(layers)) {}

  at::Tensor forward(const at::Tensor& input) override { return layers_.complete_logits(inner().forward(input)); }
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> outputs = inner().forward_all(inputs);
    outputs.front() = layers_.complete_logits(outputs.front());
    return outputs;
  }

 private:
  TensorParallel layers_;
};

}  // namespace

TensorRanks::TensorRanks(Job& job, const comm::Group& axis)
    : model_(job.model), divides_sequences_(job.recipe.sequence_parallel), layers_(divided(job, axis)) {
  job.loss = divided_loss(std::move(job.loss), layers_, job.task);
  if (!divides_sequences_ || context_ranks(job.recipe) > 1) return;
  try {
    models::run_blocks_by(model_, sequence_blocks());
  } catch (...) {  // on all ranks, because it depends on the model only
    layers_.restore_model();
    throw;
  }
  runs_blocks_ = true;
}

TensorRanks::~TensorRanks() {
  if (runs_blocks_) models::run_blocks_by(model_, nullptr);
}

models::RunBlock TensorRanks::sequence_blocks() const {
  return divides_sequences_ ? layers_.sequence_blocks(models::run_blocks_by(model_, nullptr)) : nullptr;
}

void TensorRanks::check_output(const Task& task) const {
  check_loss_of(layers_, task);
}

std::shared_ptr<void> TensorRanks::scope() const {
  return std::shared_ptr<void>(new auto(layers_.scope()));
}

Model TensorRanks::evaluated_model() const {
  return Model(model_.name(), std::make_shared<CompleteLogits>(layers_));
}

NamedTensors TensorRanks::local_parts(const NamedTensors& complete) const {
  const c10::NoGradGuard no_grad;
  const NamedTensors state = model_.state_dict();
  const std::map<std::string, at::Tensor> own(state.begin(), state.end());
  NamedTensors result = complete;
  for (auto& [name, tensor] : result) {
    const auto found = own.find(name);
    if (found == own.end() || found->second.sizes() == tensor.sizes()) continue;
    const at::Tensor slice = at::empty(found->second.sizes(), tensor.options());
    for (const auto& [part_name, part, spec] : layers_.shards_of({{name, slice}}))
      at::Tensor(part).copy_(comm::part_of(tensor, spec));
    tensor = slice;
  }
  return result;
}

}  // namespace bellows::train
