#include "bellows/train/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/data/order/packing.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/torchscript.h"
#include "bellows/models/weights.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/distillation.h"
#include "bellows/train/job.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

void check_outputs(const at::Tensor& output, const at::Tensor& teacher_output) {
  TORCH_CHECK_VALUE(output.sizes() == teacher_output.sizes(),
                    "teacher: expected outputs of the same shape as the model's, which is ", output.sizes(), ", got ",
                    teacher_output.sizes(), ". Both models need the same classes or vocabulary.");
}

/// The sum over all next tokens; the step divides it by their number.
StepOutput distilled_tokens(const Distillation& distillation, const Task& task, const at::Tensor& output,
                            const at::Tensor& teacher_output, const at::Tensor& target) {
  const at::Tensor mask = target.ne(-100);
  const at::Tensor labels = nn::softmax_cross_entropy(
      output, target, {.label_smoothing = task.label_smoothing, .reduction = nn::Reduction::sum});
  const at::Tensor taught = nn::distillation_loss(
      output, teacher_output, {.temperature = distillation.temperature, .mask = mask, .reduction = nn::Reduction::sum});
  return StepOutput::sum((1 - distillation.weight) * labels + distillation.weight * taught, at::sum(mask));
}

/// The mean distillation loss of classes [N, C] or [N, C, H, W].
at::Tensor taught_classes(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const at::Tensor& teacher_output, const at::Tensor& target) {
  nn::DistillationOptions options{.temperature = distillation.temperature};
  if (!task.per_pixel) return nn::distillation_loss(output, teacher_output, options);
  options.mask = target.ne(ignored_class(target));
  return nn::distillation_loss(output.movedim(1, -1), teacher_output.movedim(1, -1), options);
}

void load_teacher(const Recipe& recipe, const Model& teacher) {
  if (recipe.teacher_weights.empty()) return;
  try {
    models::load_weights(teacher, io::load_tensors(recipe.teacher_weights));
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "teacher_weights = ", recipe.teacher_weights, ": ", user_message(error));
  }
}

}  // namespace

at::Tensor Distillation::output(const std::vector<at::Tensor>& inputs) const {
  const no_grad guard;
  return predict(teacher, inputs);
}

std::optional<models::ModelEntry> teacher_entry(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  check_recipe(!recipe.teacher.empty() || recipe.teacher_weights.empty(), "teacher_weights = ", recipe.teacher_weights,
               " needs a teacher. Set teacher to the name of its model.");
  if (recipe.teacher.empty()) return std::nullopt;
  models::ModelEntry entry;
  try {
    entry = models::model_entry(recipe.teacher);
  } catch (const c10::Error& error) {
    check_recipe(false, "teacher = ", recipe.teacher, ": ", user_message(error));
  }
  const bool has_weights = !recipe.teacher_weights.empty() || models::is_torchscript_path(recipe.teacher);
  check_recipe(has_weights, "teacher = ", recipe.teacher,
               " would have random weights. Set teacher_weights to a safetensors or torch.save file.");
  check_recipe(entry.input == job.model.input && entry.output == job.model.output, "teacher = ", recipe.teacher,
               ": expected a model with inputs and outputs of the same kind as those of ", recipe.model, ".");
  check_recipe(job.task.loss != LossKind::bce, "teacher = ", recipe.teacher,
               ": loss = bce has no distillation loss. Use loss: cross_entropy, or leave teacher empty.");
  return entry;
}

Distillation untrained_distillation(const Recipe& recipe, const models::ModelEntry& entry, int64_t outputs,
                                    int64_t width) {
  const Model teacher = entry.make(std::max<int64_t>(outputs, 1), width);
  place_model(recipe, teacher);
  teacher.eval();
  for (const at::Tensor& parameter : teacher.parameters()) parameter.set_requires_grad(false);
  return {.teacher = teacher, .weight = recipe.distill, .temperature = recipe.distill_temperature};
}

std::optional<Distillation> make_distillation(const ResolvedJob& job) {
  const std::optional<models::ModelEntry> entry = teacher_entry(job);
  if (!entry) return std::nullopt;
  const int64_t outputs = job.task.classifies_samples() ? job.num_classes() : job.task.outputs;
  Distillation made = untrained_distillation(job.recipe, *entry, outputs, job.input_width());
  load_teacher(job.recipe, made.teacher);
  return made;
}

StepOutput distilled_loss(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const at::Tensor& teacher_output, const at::Tensor& target) {
  check_outputs(output, teacher_output);
  if (task.loss == LossKind::next_token) return distilled_tokens(distillation, task, output, teacher_output, target);
  const at::Tensor taught = is_regression(task.loss)
                                ? task_loss(task, output, teacher_output)
                                : taught_classes(distillation, task, output, teacher_output, target);
  const at::Tensor loss = (1 - distillation.weight) * task_loss(task, output, target) + distillation.weight * taught;
  return {loss, task.classifies_samples() ? output : at::Tensor()};
}

LossFn distilled_loss_function(const Model& model, const Task& task, const Distillation& distillation) {
  return [model, task, distillation](const data::Batch& batch) {
    const bool next_tokens = task.loss == LossKind::next_token;
    const at::Tensor target =
        next_tokens ? data::next_tokens(batch["tokens"], batch["segment_ids"]) : batch[task.target];
    const at::Tensor taught = distillation.output(model_inputs(distillation.teacher, batch));
    return distilled_loss(distillation, task, predict(model, batch), taught, target);
  };
}

}  // namespace bellows::train
