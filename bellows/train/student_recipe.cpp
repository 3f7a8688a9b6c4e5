#include "bellows/train/student_recipe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

namespace bellows::train {

namespace {

/// Recipes of runs contain the optimizer and the learning rate that were chosen, even if they were defaults.
void reset_defaults(Recipe& recipe) {
  Recipe automatic = recipe;
  automatic.optimizer = "auto";
  automatic.lr = 0;
  automatic = with_model_defaults(automatic);
  if (automatic.optimizer != recipe.optimizer) return;
  recipe.optimizer = "auto";
  if (automatic.lr == recipe.lr) recipe.lr = 0;
}

}  // namespace

Recipe without_teacher(Recipe recipe) {
  const Recipe defaults;
  recipe.teacher = defaults.teacher;
  recipe.teacher_weights = defaults.teacher_weights;
  recipe.distill = defaults.distill;
  recipe.distill_temperature = defaults.distill_temperature;
  recipe.distill_init = defaults.distill_init;
  recipe.teacher_dtype = defaults.teacher_dtype;
  recipe.teacher_compile = defaults.teacher_compile;
  recipe.teacher_cache = defaults.teacher_cache;
  recipe.teacher_top = defaults.teacher_top;
  return recipe;
}

Recipe student_recipe(const Recipe& of_teacher, const std::string& student) {
  Recipe recipe = without_teacher(of_teacher);
  reset_defaults(recipe);
  recipe.model = student;
  recipe.weights.clear();
  recipe.run_folder.clear();
  // Their steps were chosen for the teacher's run.
  const Recipe defaults;
  recipe.quantize = defaults.quantize;
  recipe.quantize_scales = defaults.quantize_scales;
  recipe.quantize_start_step = defaults.quantize_start_step;
  recipe.batch_norm_freeze_step = defaults.batch_norm_freeze_step;
  return recipe;
}

void check_same_classes(const ResolvedJob& teacher, const ResolvedJob& student) {
  if (teacher.model.input == models::InputKind::tokens && student.model.input == models::InputKind::tokens) {
    TORCH_CHECK_VALUE(teacher.input_width() == student.input_width(), "distill: the teacher reads a vocabulary of ",
                      teacher.input_width(), " tokens, but the student one of ", student.input_width(),
                      ". Use the same tokenizer for both.");
  }
  if (!teacher.task.classifies_samples() || !student.task.classifies_samples()) return;
  TORCH_CHECK_VALUE(teacher.num_classes() == student.num_classes(), "distill: the teacher predicts ",
                    teacher.num_classes(), " classes, but ", student.recipe.data, " has ", student.num_classes(),
                    ". Use data with the classes of ", teacher.recipe.data, ".");
  const std::vector<std::string> taught = teacher.info().classes, own = student.info().classes;
  for (size_t i = 0; i < std::min(taught.size(), own.size()); ++i) {
    TORCH_CHECK_VALUE(taught[i] == own[i], "distill: class ", i, " is \"", taught[i], "\" in ", teacher.recipe.data,
                      ", but \"", own[i], "\" in ", student.recipe.data,
                      ". The classes must have the same names in the same order.");
  }
}

}  // namespace bellows::train
