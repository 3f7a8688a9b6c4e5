#include "bellows/train/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <charconv>

#include "bellows/amp/policy.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/log.h"
#include "bellows/data/order/packing.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/layer_transfer.h"
#include "bellows/models/pretrained/pretrained.h"
#include "bellows/models/registry.h"
#include "bellows/models/weights.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/distillation.h"
#include "bellows/train/inference/inference_model.h"
#include "bellows/train/job.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/teacher/cached_source.h"
#include "bellows/train/teacher/teacher_cache.h"

namespace bellows::train {

namespace {

void check_outputs(const at::Tensor& output, const at::Tensor& teacher_output) {
  TORCH_CHECK_VALUE(output.sizes() == teacher_output.sizes(),
                    "teacher: expected outputs of the same shape as the model's, which is ", output.sizes(), ", got ",
                    teacher_output.sizes(), ". Both models need the same classes or vocabulary.");
}
void check_outputs(const at::Tensor&, const nn::TopLogits&) {}  // nn::distillation_loss() checks the positions

/// The sum over all next tokens; the step divides it by their number.
template <class TeacherOutput>
StepOutput distilled_tokens(const Distillation& distillation, const Task& task, const at::Tensor& output,
                            const TeacherOutput& teacher_output, const at::Tensor& target) {
  const at::Tensor mask = target.ne(-100);
  const at::Tensor labels = nn::softmax_cross_entropy(
      output, target, {.label_smoothing = task.label_smoothing, .reduction = nn::Reduction::sum});
  const at::Tensor taught = nn::distillation_loss(
      output, teacher_output, {.temperature = distillation.temperature, .mask = mask, .reduction = nn::Reduction::sum});
  return StepOutput::sum((1 - distillation.weight) * labels + distillation.weight * taught, at::sum(mask));
}

at::Tensor classes_last(const at::Tensor& output) {
  return output.movedim(1, -1);
}
const nn::TopLogits& classes_last(const nn::TopLogits& output) {
  return output;
}

/// The mean distillation loss of classes [N, C] or [N, C, H, W].
template <class TeacherOutput>
at::Tensor taught_classes(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const TeacherOutput& teacher_output, const at::Tensor& target) {
  nn::DistillationOptions options{.temperature = distillation.temperature};
  if (!task.per_pixel) return nn::distillation_loss(output, teacher_output, options);
  options.mask = target.ne(ignored_class(target));
  return nn::distillation_loss(output.movedim(1, -1), classes_last(teacher_output), options);
}

at::Tensor taught_numbers(const Task& task, const at::Tensor& output, const at::Tensor& teacher_output) {
  return task_loss(task, output, teacher_output);
}
at::Tensor taught_numbers(const Task&, const at::Tensor&, const nn::TopLogits&) {
  TORCH_CHECK_VALUE(false,
                    "distilled_loss: expected all outputs of a teacher that predicts numbers, got its largest logits.");
}

template <class TeacherOutput>
StepOutput weighted_loss(const Distillation& distillation, const Task& task, const at::Tensor& output,
                         const TeacherOutput& teacher_output, const at::Tensor& target) {
  check_outputs(output, teacher_output);
  if (task.loss == LossKind::next_token) return distilled_tokens(distillation, task, output, teacher_output, target);
  const at::Tensor taught = is_regression(task.loss)
                                ? taught_numbers(task, output, teacher_output)
                                : taught_classes(distillation, task, output, teacher_output, target);
  const at::Tensor loss = (1 - distillation.weight) * task_loss(task, output, target) + distillation.weight * taught;
  return {loss, task.classifies_samples() ? output : at::Tensor()};
}

at::Tensor target_of(const Task& task, const data::Batch& batch) {
  const bool next_tokens = task.loss == LossKind::next_token;
  return next_tokens ? data::next_tokens(batch["tokens"], batch["segment_ids"]) : batch[task.target];
}

void load_teacher(const Recipe& recipe, const Model& teacher) {
  if (recipe.teacher_weights.empty()) return;
  try {
    models::load_weights(teacher, models::load_pretrained(recipe.teacher_weights));
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "teacher_weights = ", recipe.teacher_weights, ": ", user_message(error));
  }
}

/// Keys that have no effect without a teacher.
void check_teacher_is_set(const Recipe& recipe) {
  if (!recipe.teacher.empty()) return;
  const char* hint = " needs a teacher. Set teacher to the name of its model.";
  check_recipe(recipe.teacher_weights.empty(), "teacher_weights = ", recipe.teacher_weights, hint);
  check_recipe(recipe.teacher_cache.empty(), "teacher_cache = ", recipe.teacher_cache, hint);
  check_recipe(recipe.teacher_dtype == "auto", "teacher_dtype = ", recipe.teacher_dtype, hint);
  check_recipe(!recipe.teacher_compile, "teacher_compile = true", hint);
  check_recipe(recipe.distill_init == "none", "distill_init = ", recipe.distill_init, hint);
}

Distillation new_distillation(const Recipe& recipe, const models::ModelEntry& entry, int64_t outputs, int64_t width) {
  const Model teacher = entry.make(std::max<int64_t>(outputs, 1), width);
  place_model(recipe, teacher);
  teacher.eval();
  for (const at::Tensor& parameter : teacher.parameters()) parameter.set_requires_grad(false);
  return {.teacher = teacher, .weight = recipe.distill, .temperature = recipe.distill_temperature};
}

/// Casts and compiles the teacher, after its weights are loaded.
void prepare_teacher(const Recipe& recipe, Distillation& distillation) {
  if (recipe.teacher_dtype == "bf16") {
    const amp::Policy policy{
        .name = "teacher", .dtype = at::kBFloat16, .autocast = true, .low_weights = true, .norms_fp32 = true};
    distillation.teacher = amp::apply(distillation.teacher, policy).model;
  }
  if (recipe.teacher_compile) distillation.teacher = compiled_model(distillation.teacher);
}

void start_from_layers(const Recipe& recipe, const Model& student, const Model& teacher) {
  try {
    const int64_t layers = models::layer_count(teacher);
    const auto transfer =
        models::copy_layers(student, teacher, initial_layers(recipe, models::layer_count(student), layers));
    log_info("distill_init: the model starts from the teacher's ", transfer.to_string(layers), ".");
  } catch (const RecipeError&) {
    throw;
  } catch (const c10::Error& error) {
    check_recipe(false, "distill_init = ", recipe.distill_init, ": ", user_message(error));
  }
}

}  // namespace

at::Tensor Distillation::output(const std::vector<at::Tensor>& inputs) const {
  const no_grad guard;
  return predict(teacher, inputs);
}

std::optional<models::ModelEntry> teacher_entry(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  check_teacher_is_set(recipe);
  if (recipe.teacher.empty()) return std::nullopt;
  models::ModelEntry entry;
  try {
    entry = models::model_entry(recipe.teacher);
  } catch (const c10::Error& error) {
    check_recipe(false, "teacher = ", recipe.teacher, ": ", user_message(error));
  }
  const bool has_weights = !recipe.teacher_weights.empty() || models::is_program_path(recipe.teacher);
  check_recipe(has_weights, "teacher = ", recipe.teacher,
               " would have random weights. Set teacher_weights to a safetensors or torch.save file.");
  check_recipe(entry.input == job.model.input && entry.output == job.model.output, "teacher = ", recipe.teacher,
               ": expected a model with inputs and outputs of the same kind as those of ", recipe.model, ".");
  check_recipe(job.task.loss != LossKind::bce, "teacher = ", recipe.teacher,
               ": loss = bce has no distillation loss. Use loss: cross_entropy, or leave teacher empty.");
  check_recipe(recipe.teacher_top == 0 || !is_regression(job.task.loss), "teacher_top = ", recipe.teacher_top,
               " needs class logits, but the model predicts numbers. Set teacher_top: 0.");
  const bool starts_twice = recipe.distill_init != "none" && !recipe.weights.empty();
  check_recipe(!starts_twice, "distill_init = ", recipe.distill_init, " and weights = ", recipe.weights,
               " both set the initial weights. Leave weights empty, or set distill_init: none.");
  return entry;
}

Distillation untrained_distillation(const Recipe& recipe, const models::ModelEntry& entry, int64_t outputs,
                                    int64_t width) {
  Distillation made = new_distillation(recipe, entry, outputs, width);
  prepare_teacher(recipe, made);
  return made;
}

std::optional<Distillation> make_distillation(const ResolvedJob& job, const Model& student) {
  const Recipe& recipe = job.recipe;
  const std::optional<models::ModelEntry> entry = teacher_entry(job);
  if (!entry) return std::nullopt;
  const int64_t outputs = job.task.classifies_samples() ? job.num_classes() : job.task.outputs;
  Distillation made = new_distillation(recipe, *entry, outputs, job.input_width());
  load_teacher(recipe, made.teacher);
  if (!recipe.teacher_cache.empty()) made.weights_hash = weights_hash(made.teacher);
  if (recipe.distill_init != "none") start_from_layers(recipe, student, made.teacher);
  prepare_teacher(recipe, made);
  return made;
}

std::vector<int64_t> initial_layers(const Recipe& recipe, int64_t student_layers, int64_t teacher_layers) {
  const std::string& init = recipe.distill_init;
  if (init == "every_second") return models::every_second_layer(student_layers, teacher_layers);
  std::vector<int64_t> layers;
  for (const std::string& text : split_list(init)) {
    int64_t layer = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
    check_recipe(error == std::errc() && end == text.data() + text.size(), "distill_init = ", init,
                 ": expected none, every_second or layer numbers separated by commas, got \"", text, "\".");
    layers.push_back(layer);
  }
  return layers;
}

StepOutput distilled_loss(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const at::Tensor& teacher_output, const at::Tensor& target) {
  return weighted_loss(distillation, task, output, teacher_output, target);
}

StepOutput distilled_loss(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const nn::TopLogits& teacher_output, const at::Tensor& target) {
  return weighted_loss(distillation, task, output, teacher_output, target);
}

LossFn distilled_loss_function(const Model& model, const Task& task, const Distillation& distillation) {
  return [model, task, distillation](const data::Batch& batch) {
    const at::Tensor target = target_of(task, batch);
    const at::Tensor taught = distillation.output(model_inputs(distillation.teacher, batch));
    return model_loss(model, model_inputs(model, batch), [&](const at::Tensor& output) {
      return distilled_loss(distillation, task, output, taught, target);
    });
  };
}

LossFn cached_loss_function(const Model& model, const Task& task, const Distillation& distillation) {
  // The loss reads only the numbers. With the teacher itself, the function would keep it in memory.
  const Distillation weights{.teacher = model, .weight = distillation.weight, .temperature = distillation.temperature};
  return [model, task, weights](const data::Batch& batch) {
    const at::Tensor target = target_of(task, batch);
    const std::vector<at::Tensor> inputs = model_inputs(model, batch);
    if (!batch.contains(teacher_classes)) {
      return model_loss(model, inputs, [&](const at::Tensor& output) {
        return distilled_loss(weights, task, output, batch[teacher_logits], target);
      });
    }
    const nn::TopLogits taught{
        .values = batch[teacher_logits], .indices = batch[teacher_classes].to(at::kLong), .rest = batch[teacher_rest]};
    return model_loss(model, inputs,
                      [&](const at::Tensor& output) { return distilled_loss(weights, task, output, taught, target); });
  };
}

}  // namespace bellows::train
