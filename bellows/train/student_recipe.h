#pragma once

#include <string>

#include "bellows/train/inference/trained_model.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Returns the recipe of a student that learns from a trained model. It is the teacher's recipe with another model, and
/// without files that belong to the teacher: `weights`, `run_folder` and keys of the teacher's own teacher. Keys of
/// quantization-aware training (`quantize`, `quantize_scales`, `quantize_start_step`, `batch_norm_freeze_step`) have their
/// default values, because their steps were chosen for the teacher's run. If the teacher was trained with the default
/// optimizer or learning rate of its model, the student has the defaults of its own model.
/// The keys `teacher` and `teacher_weights` are not set yet.
/// Params: student – `model` of the student
Recipe student_recipe(const Recipe& of_teacher, const std::string& student);

/// Returns `recipe` without its teacher, to train the same student alone.
Recipe without_teacher(Recipe recipe);

/// Checks that a student's data has the classes and the vocabulary of the teacher.
/// Params: teacher – the resolved recipe of the teacher's run
///         student – the resolved recipe of the student
/// Throws: c10::ValueError if the classes or the vocabularies differ (the message names the difference)
void check_same_classes(const ResolvedJob& teacher, const ResolvedJob& student);

}  // namespace bellows::train
