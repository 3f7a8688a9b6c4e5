#include "bellows/train/student_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::train {

namespace {

std::string problem_of(const ResolvedJob& teacher, const ResolvedJob& student) {
  try {
    check_same_classes(teacher, student);
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "";
}

ResolvedJob resolved(int64_t classes) {
  Recipe recipe;
  recipe.model = "mlp";
  recipe.num_classes = classes;
  return resolve_model(recipe);
}

}  // namespace

TEST(StudentRecipe, IsTheTeachersWithAnotherModel) {
  Recipe teacher;
  teacher.model = "resnet18";
  teacher.data = "photos";
  teacher.epochs = 7;
  teacher.weights = "pretrained.safetensors";
  teacher.run_folder = "runs/teacher";
  teacher.teacher = "resnet50";
  teacher.teacher_weights = "larger.safetensors";
  teacher.distill_temperature = 8;
  const Recipe student = student_recipe(with_model_defaults(teacher), "mlp");
  EXPECT_EQ(student.model, "mlp");
  EXPECT_EQ(student.data, "photos");
  EXPECT_EQ(student.epochs, 7);
  EXPECT_EQ(student.weights, "") << "they belong to the teacher's model";
  EXPECT_EQ(student.run_folder, "");
  EXPECT_EQ(student.teacher, "");
  EXPECT_EQ(student.teacher_weights, "");
  EXPECT_EQ(student.distill_temperature, Recipe{}.distill_temperature);
}

TEST(StudentRecipe, DefaultsOfTheTeacherAreNotSettings) {
  Recipe teacher;
  teacher.model = "bert-20m";
  teacher.weights = "pretrained.safetensors";
  const Recipe run = with_model_defaults(teacher);
  ASSERT_EQ(run.lr, 5e-5) << "for pretrained weights";
  EXPECT_EQ(student_recipe(run, "distilbert-base").lr, 0);
  EXPECT_EQ(student_recipe(run, "distilbert-base").optimizer, "auto");
  Recipe chosen = run;
  chosen.lr = 3e-4;
  EXPECT_EQ(student_recipe(chosen, "distilbert-base").lr, 3e-4);
  chosen.optimizer = "lion";
  EXPECT_EQ(student_recipe(chosen, "distilbert-base").optimizer, "lion");
}

TEST(StudentRecipe, ClassesMustBeTheSame) {
  EXPECT_EQ(problem_of(resolved(10), resolved(10)), "");
  EXPECT_THAT(problem_of(resolved(10), resolved(5)), testing::HasSubstr("the teacher predicts 10 classes"));
}

}  // namespace bellows::train
