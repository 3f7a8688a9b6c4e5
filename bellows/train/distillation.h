#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/models/registry.h"
#include "bellows/nn/distillation.h"
#include "bellows/train/loss.h"
#include "bellows/train/resolved_job.h"
#include "bellows/train/task.h"

namespace bellows::train {

/// A teacher whose outputs the model learns, as the recipe's `teacher`, `distill` and `distill_temperature` describe it.
struct Distillation {
  Model teacher;  ///< in evaluation mode, without gradients; with `teacher_compile`, a compiled model
  double weight = 0.7;
  double temperature = 2;
  std::string weights_hash{};  ///< of the loaded weights; empty unless the recipe has a `teacher_cache`

  /// Returns the teacher's first output, without recording gradients.
  /// Params: inputs – in the order of the teacher's inputs
  at::Tensor output(const std::vector<at::Tensor>& inputs) const;
};

/// Looks up the recipe's teacher.
/// Returns: the entry of the registry, or nothing if the recipe has no teacher
/// Throws:  RecipeError if there is no such model, its inputs or outputs are of another kind than the model's, the task has
///          no distillation loss, or the keys do not fit
std::optional<models::ModelEntry> teacher_entry(const ResolvedJob& job);

/// Creates a teacher without its weights, in evaluation mode and in the recipe's `teacher_dtype`.
/// Params: outputs, width – arguments of ModelEntry::make()
Distillation untrained_distillation(const Recipe& recipe, const models::ModelEntry& entry, int64_t outputs,
                                    int64_t width);
/// Creates the recipe's teacher, loads its weights, and places it on the recipe's device. If the recipe has a
/// `distill_init`, the function also copies layers of the teacher into the student.
/// Params: student – changed in place
/// Throws: c10::ValueError if the weights or the layers do not fit; see teacher_entry()
std::optional<Distillation> make_distillation(const ResolvedJob& job, const Model& student);

/// Parses `distill_init`.
/// Params:  student_layers, teacher_layers – numbers of layers
/// Returns: for each layer of the student, the layer of the teacher
/// Throws:  RecipeError if the value is neither every_second nor a list of numbers
std::vector<int64_t> initial_layers(const Recipe& recipe, int64_t student_layers, int64_t teacher_layers);

/// Returns (1 − weight) · loss of the targets + weight · distillation loss. For class labels and next tokens, the
/// distillation loss is nn::distillation_loss() at the positions that have a target. For numbers, it is the task's loss
/// with the teacher's predictions as targets.
/// Params: output, teacher_output – first outputs of both models
///         target                 – as for task_loss(); next tokens: [N, T], −100: ignored
StepOutput distilled_loss(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const at::Tensor& teacher_output, const at::Tensor& target);
/// The same from the teacher's largest logits, for classes and next tokens. Logits per pixel are [N, H, W, k].
StepOutput distilled_loss(const Distillation& distillation, const Task& task, const at::Tensor& output,
                          const nn::TopLogits& teacher_output, const at::Tensor& target);
/// Returns the loss function of a task with a teacher.
LossFn distilled_loss_function(const Model& model, const Task& task, const Distillation& distillation);
/// The same, but with the teacher's outputs from the batch (teacher/teacher_cache.h). The teacher itself is not used,
/// and the function does not keep it in memory.
LossFn cached_loss_function(const Model& model, const Task& task, const Distillation& distillation);

}  // namespace bellows::train
