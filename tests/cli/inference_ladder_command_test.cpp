// `bellows ladder --inference`, and the files that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "failure.h"
#include "forked.h"
#include "output_width.h"
#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Json json_in(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::string text_in(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One epoch of an MLP on the digits.
class InferenceLadderCommand : public TrainedMlp<InferenceLadderCommand> {};

}  // namespace

TEST_F(InferenceLadderCommand, ClimbsWithATrainedModel) {
  const Outcome outcome = run_bellows({"ladder", "--inference", run(), "--quick", "--batch-size", "64", "--max-drop",
                                       "1", "--json", path("l.json"), "--html", path("l.html")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  expect_narrow(outcome.out, 79);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("bellows ladder --inference: mlp on "), HasSubstr("eager "),
                                 HasSubstr("static int8"), HasSubstr("may fall by 1 percentage points")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("calibration"))) << "jobs are silent";
  const Json result = json_in(path("l.json"));
  EXPECT_EQ(result["goal"], "inference");
  EXPECT_EQ(result["max_drop"], 0.01);
  const Json& eager = result["baseline"];
  EXPECT_EQ(eager["title"], "eager");
  EXPECT_EQ(eager["batch_size"], 64);
  EXPECT_GT(eager["step_ms"].get<double>(), 0);
  EXPECT_GT(eager["peak_bytes"], eager["model_bytes"]);
  ASSERT_EQ(result["rungs"].size(), 6u);
  for (const Json& rung : result["rungs"]) {
    if (!rung["kept"].get<bool>()) continue;
    EXPECT_GE(rung["accuracy"].get<double>(), eager["accuracy"].get<double>() - 0.01 - 1e-9) << rung;
    EXPECT_GT(rung["interval"][0].get<double>(), 1.0) << rung;
  }
  const Json& int8 = result["rungs"][4];
  EXPECT_EQ(int8["technique"], "int8");
  EXPECT_LT(int8["model_bytes"].get<double>(), 0.3 * eager["model_bytes"].get<double>());
  EXPECT_GT(int8["output_difference"].get<double>(), 0);
  for (const char* key : {"learning_rate", "time_to_target_s", "judged_by", "curves", "step_shares_ms"})
    EXPECT_FALSE(eager.contains(key)) << key << " is only for training";
  for (const char* key : {"target_accuracy", "seeds", "eval_every_steps", "speedup_equal_batch", "recipe"})
    EXPECT_FALSE(result.contains(key)) << key << " is only for training";
  if (!result["speedup"].is_null()) {
    const double start = result["speedup_start_step_ms"].get<double>(),
                 top = result["speedup_top_step_ms"].get<double>();
    EXPECT_NEAR(start / top, result["speedup"].get<double>(), 1e-9);
    char line[80];
    std::snprintf(line, sizeof line, "%.2f ms → %.2f ms", start, top);
    EXPECT_THAT(outcome.out, HasSubstr(line));
  }
  EXPECT_THAT(text_in(path("l.html")), AllOf(HasSubstr("Time per batch"), HasSubstr("static int8")));
  const Outcome evaluated = run_bellows({"evaluate", "--run", run(), "--json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_NEAR(Json::parse(evaluated.out)["accuracy"].get<double>(), eager["accuracy"].get<double>(), 1e-9)
      << "rung 0 has the accuracy that evaluate reports";
}

TEST_F(InferenceLadderCommand, ComparesTheOutputsOfAnUntrainedModel) {
  const Outcome outcome =
      run_bellows({"ladder", "--inference", "--model", "tabular_mlp", "--batch-size", "4", "--quick", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["model"], "tabular_mlp (random weights)");
  EXPECT_EQ(result["data"], "synthetic inputs");
  EXPECT_TRUE(result["baseline"]["accuracy"].is_null());
  EXPECT_EQ(result["rungs"][1]["verdict"], "does not apply") << "channels-last needs images";
  EXPECT_LT(result["rungs"][3]["output_difference"].get<double>(), 1e-4) << "compiled";
}

TEST_F(InferenceLadderCommand, TakesTheNameOfAModelAndWarnsOnce) {
  const Outcome outcome =
      run_bellows({"ladder", "--inference", "digits_resnet", "--max-drop", "0", "--quick", "--max-seconds", "0.01"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("bellows ladder --inference: digits_resnet (random weights) on synthetic inputs"));
  const std::string warning = "the recipe has no dataset";
  const size_t first = outcome.err.find(warning);
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(warning, first + 1), std::string::npos) << outcome.err;
}

TEST_F(InferenceLadderCommand, ARecipeWithoutARunHasRandomWeights) {
  const Outcome outcome =
      run_bellows({"ladder", "--inference", run() + "/recipe.yaml", "--quick", "--max-seconds", "0.01", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["model"], "mlp (random weights)");
  EXPECT_THAT(result["data"].get<std::string>(), HasSubstr("digits")) << "the inputs are those of the recipe";
  EXPECT_THAT(result["rungs"][0]["note"].get<std::string>(), HasSubstr("the time limit"));
}

TEST_F(InferenceLadderCommand, CtrlCKeepsTheResultsSoFar) {
  Process process({.arguments = {"ladder", "--inference", run(), "--json", path("stopped.json")}});
  ASSERT_TRUE(
      process.wait_until([](const Outcome& so_far) { return so_far.out.find("eager  ") != std::string::npos; }));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_TRUE(json_in(path("stopped.json"))["interrupted"].get<bool>());
}

TEST_F(InferenceLadderCommand, ListsItsTechniques) {
  const Outcome outcome = run_bellows({"ladder", "--inference", "--list"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("## static int8 (`int8`)"), HasSubstr("## inference mode"), Not(HasSubstr("optimizer"))));
}

TEST_F(InferenceLadderCommand, Problems) {
  const auto problem = [](const std::vector<std::string>& arguments, int exit_code, const std::string& words) {
    std::vector<std::string> all{"ladder"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    expect_failure(exit_code == 2 ? run_forked(all) : run_bellows(all), exit_code, words);
  };
  for (const std::vector<std::string>& training : {std::vector<std::string>{"--target-accuracy", "0.9"},
                                                   {"--memory"},
                                                   {"--memory-target", "1GB"},
                                                   {"--eval-every-steps", "5"},
                                                   {"--max-epochs", "5"},
                                                   {"--write-recipe", path("r.yaml")}}) {
    std::vector<std::string> all{"--inference", run()};
    all.insert(all.end(), training.begin(), training.end());
    problem(all, 2, training.front() + " is an option for training. It cannot be combined with --inference.");
  }
  problem({"--data", digits(), "--max-drop", "1"}, 2, "--max-drop requires --inference.");
  problem({"--data", digits(), "--run", run()}, 2, "--run requires --inference.");
  problem({"--inference", run(), "--run", run()}, 2, "both name the model");
  problem({"--inference"}, 2, "expected a model. Name it after --inference");
  problem({"--inference", run(), "--max-drop", "-1"}, 2, "a number of points from 0 to 100");
  problem({"--data", digits(), "--max-drop", "0"}, 2, "--max-drop requires --inference.");
  problem(
      {"--inference", path("none")}, 2,
      "--inference " + path("none") + ": there is no folder, file or registered model of this name. Expected a run");
  problem({"--inference", "digits_resent"}, 2, "digits_resnet");
  problem({"--inference", "mlp", "--model", "resnet18"}, 2, "both name the model");
  problem({"--inference", "--run", path("none")}, 1, "there is no folder");
  std::filesystem::create_directory(path("empty"));
  std::filesystem::copy_file(run() + "/recipe.yaml", path("empty") + "/recipe.yaml");
  problem({"--inference", path("empty")}, 1, "contains no checkpoint");
  problem({"--inference", run(), "--split", "spring"}, 1, "spring");
}

}  // namespace bellows::cli
