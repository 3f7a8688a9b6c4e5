#include "bellows/tune/study_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "bellows/core/error.h"

namespace bellows::tune {

namespace {

using ::testing::HasSubstr;

std::string study_problem(const std::string& text) {
  try {
    parse_study(text, "study.yaml");
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "";
}

std::string space_problem(const std::string& space) {
  return study_problem("space:\n  " + space + "\n");
}

}  // namespace

TEST(StudyFile, ReadsAllKeys) {
  const StudyFile file = parse_study(R"(
recipe: {model: mlp, epochs: 3, target_accuracy: 0.9}
space:
  lr: {log: [1e-3, 0.1], points: 3}
  momentum: {uniform: [0.5, 0.9], step: 0.1}
  batch_size: {log_integer: [8, 64]}
  warmup_epochs: {integer: [0, 2]}
  optimizer: [sgd, adamw]
objective: time_to_target
constraints:
  peak_memory: {at_most: 2GB}
sampler: random
halving: {first_rung: 2, factor: 4}
trials: 12
seed: 7
trial_time: 2min
trial_memory: 512MB
price_per_hour: 1.5
)",
                                     "study.yaml");
  EXPECT_EQ(file.recipe.model, "mlp");
  const std::vector<Parameter>& p = file.study.space.parameters;
  ASSERT_EQ(p.size(), 5u);
  EXPECT_EQ(p[0].grid(), (std::vector<double>{0.001, 0.01, 0.1}));
  EXPECT_EQ(p[1].count(), 5);
  EXPECT_TRUE(p[2].log && p[2].kind == Parameter::Kind::integer);
  EXPECT_EQ(p[3].count(), 3);
  EXPECT_EQ(p[4].choices, (std::vector<std::string>{"sgd", "adamw"}));
  EXPECT_EQ(file.study.objective, "time_to_target");
  EXPECT_FALSE(file.study.maximize);
  // Reaching the target is a constraint of this objective.
  EXPECT_EQ(file.study.constraints, (std::vector<Constraint>{{.metric = "peak_memory", .at_most = 2147483648.0},
                                                             {.metric = "accuracy", .at_least = 0.9}}));
  EXPECT_EQ(file.study.sampler, "random");
  EXPECT_EQ(file.study.halving->first_rung, 2);
  EXPECT_EQ(file.study.halving->factor, 4);
  EXPECT_EQ(file.trials, 12);
  EXPECT_EQ(file.study.seed, 7u);
  EXPECT_EQ(file.trial_seconds, 120);
  EXPECT_EQ(file.trial_bytes, 512 << 20);
  EXPECT_EQ(file.price_per_hour, 1.5);
  const train::Recipe recipe = recipe_of(file, {0.01, 0.7, 16, 1, 1});
  EXPECT_EQ(recipe.lr, 0.01);
  EXPECT_EQ(recipe.momentum, 0.7);
  EXPECT_EQ(recipe.batch_size, 16);
  EXPECT_EQ(recipe.warmup_epochs, 1);
  EXPECT_EQ(recipe.optimizer, "adamw");
  EXPECT_EQ(recipe.epochs, 3);
}

TEST(StudyFile, RejectsUnusableSpaces) {
  EXPECT_THAT(space_problem("lrr: {log: [0.1, 1]}"), HasSubstr("line 2: unknown key \"lrr\". Did you mean \"lr\"?"));
  EXPECT_THAT(space_problem("lr: {log: [1, 0.1]}"), HasSubstr("with the smaller number first, got [1, 0.1]"));
  EXPECT_THAT(space_problem("lr: {log: [0, 0.1]}"), HasSubstr("a logarithmic range must start above 0"));
  EXPECT_THAT(space_problem("lr: {log: [0.1]}"), HasSubstr("expected a range such as [0.001, 0.1]"));
  EXPECT_THAT(space_problem("lr: {logg: [0.1, 1]}"), HasSubstr("Did you mean \"log\"?"));
  EXPECT_THAT(space_problem("lr: {step: 1}"), HasSubstr("exactly one of uniform, log, integer and log_integer"));
  EXPECT_THAT(space_problem("lr: {uniform: [a, b]}"), HasSubstr("expected a number, got \"a\""));
  EXPECT_THAT(space_problem("lr: {uniform: [-1, 1]}"), HasSubstr("line 2: lr = \"-1"));
  EXPECT_THAT(space_problem("batch_size: {uniform: [1, 8]}"), HasSubstr("the key is of type \"integer\""));
  EXPECT_THAT(space_problem("optimizer: {integer: [1, 8]}"),
              HasSubstr("the key is of type \"text\", so it needs a list"));
  EXPECT_THAT(space_problem("optimizer: []"), HasSubstr("the list of values is empty"));
  EXPECT_THAT(space_problem("optimizer: [sgd, adm]"), HasSubstr("Did you mean \"adam\"?"));
  EXPECT_THAT(space_problem("model.hidden: [1, 2]"), HasSubstr("need a recipe whose key model is the path"));
  EXPECT_THAT(study_problem("trials: 3"), HasSubstr("the search space is empty"));
  EXPECT_THAT(study_problem("space: 3"), HasSubstr("space: expected lines of the form"));
}

TEST(StudyFile, RejectsOtherUnusableSettings) {
  const std::string space = "space: {momentum: {uniform: [0, 1]}}\n";
  EXPECT_EQ(study_problem(space), "");
  EXPECT_THAT(study_problem(space + "samplr: tpe"), HasSubstr("line 2: unknown key \"samplr\". Did you mean"));
  EXPECT_THAT(study_problem(space + "sampler: tp"), HasSubstr("Did you mean \"tpe\"?"));
  EXPECT_THAT(study_problem(space + "objective: acuracy"), HasSubstr("Did you mean \"accuracy\"?"));
  EXPECT_THAT(study_problem(space + "objective: {maximise: f1}"), HasSubstr("Did you mean \"maximize\"?"));
  EXPECT_THAT(study_problem(space + "objective: [a]"), HasSubstr("objective: expected a metric"));
  EXPECT_THAT(study_problem(space + "objective: time_to_target"), HasSubstr("needs the recipe key target_accuracy"));
  EXPECT_THAT(study_problem(space + "objective: cost"), HasSubstr("needs price_per_hour"));
  EXPECT_THAT(study_problem(space + "constraints: {accuracy: {at_least: 2, at_most: 1}}"),
              HasSubstr("cannot be satisfied"));
  EXPECT_THAT(study_problem(space + "constraints: {peak_memory: {at_most: 2 GiX}}"), HasSubstr("such as 0.95, 2GB"));
  EXPECT_THAT(study_problem(space + "halving: {factor: 1}"),
              HasSubstr("halving.factor: expected an integer of at lea"));
  EXPECT_THAT(study_problem(space + "trials: 2.5"), HasSubstr("trials: expected an integer of at least 1, got 2.5"));
  EXPECT_THAT(study_problem(space + "trials: 2min"), HasSubstr("trials: expected a number such as 20, got \"2min\""));
  EXPECT_THAT(study_problem(space + "trial_time: 4GB"), HasSubstr("expected a number such as 90s or 2h"));
  EXPECT_THAT(study_problem(space + "trial_memory: 10min"), HasSubstr("expected a number such as 2GB or 512MB"));
  EXPECT_THAT(study_problem(space + "constraints: {accuracy: {}}"), HasSubstr("expected at_least, at_most or both"));
  EXPECT_THAT(study_problem("space: {lr: {log: [0.001, 0.3], step: 0.01}}"),
              HasSubstr("the step of a logarithmic range must be less than twice its first number"));
  EXPECT_THAT(study_problem("space: {batch_size: {integer: [1, 8], step: 0.5}}"),
              HasSubstr("the step of integers must be an integer of at least 1, got 0.5"));
  EXPECT_EQ(parse_study("space: {batch_size: {step: 16, integer: [16, 64]}}", "study.yaml").study.space.count(), 4);
  EXPECT_THAT(study_problem(space + "trials: 1\ntrials: 2"), HasSubstr("the key \"trials\" occurs twice"));
  EXPECT_THAT(study_problem("space: ["), HasSubstr("the file is not valid YAML"));
  EXPECT_THAT(study_problem("- a"), HasSubstr("expected lines of the form"));
  EXPECT_THAT(study_problem("recipe: {lrr: 1}\n" + space), HasSubstr("study.yaml, recipe"));
  EXPECT_THROW(load_study("/nonexistent.yaml"), c10::ValueError);
}

TEST(StudyFile, SearchesOptionsOfTheModel) {
  const std::string path = ::testing::TempDir() + "tune_model.json";
  std::ofstream(path) << R"({"model_type": "gpt2", "n_layer": 2, "activation_function": "gelu"})";
  const std::string recipe = "recipe: {model: " + path + "}\nspace:\n  ";
  const StudyFile file =
      parse_study(recipe + "model.n_layer: {integer: [1, 4]}\n  model.activation_function: [gelu, relu]", "study.yaml");
  EXPECT_EQ(model_config_of(file, {3, 1}),
            "{\n  \"model_type\": \"gpt2\",\n  \"n_layer\": 3,\n  \"activation_function\": \"relu\"\n}");
  EXPECT_THAT(study_problem(recipe + "model.n_layers: {integer: [1, 4]}"), HasSubstr("Did you mean \"n_layer\"?"));
  std::filesystem::remove(path);
}

}  // namespace bellows::tune
