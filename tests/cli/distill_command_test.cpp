// `bellows distill`, and the files that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/train/inference/trained_model.h"
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

/// A small ResNet on the digits as the teacher.
class DistillCommand : public TrainedFolder<DistillCommand> {
 public:
  static std::vector<std::string> settings() { return {}; }

 protected:
  static std::string teacher() { return run(); }
};

}  // namespace

TEST_F(DistillCommand, TrainsAStudentAndComparesIt) {
  const std::string out = path("student"), result_file = path("result.json");
  const Outcome outcome = run_bellows({"distill", teacher(), "--student", "mlp", "--out", out, "--temperature", "4",
                                       "--weight", "0.9", "--compare", "--set", "epochs=2", "--json", result_file});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("epoch"), HasSubstr("training the student alone")));
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("teacher       alone     student"), HasSubstr("parameters"), HasSubstr("than alone.")));
  expect_narrow(outcome.out, 120);
  std::ifstream in(result_file);
  const Json result = Json::parse(in);
  EXPECT_EQ(result["teacher"]["model"], "digits_resnet");
  EXPECT_EQ(result["student"]["model"], "mlp");
  EXPECT_EQ(result["student"]["parameters"], result["alone"]["parameters"]);
  EXPECT_LT(result["student"]["parameters"].get<int64_t>(), result["teacher"]["parameters"].get<int64_t>());
  EXPECT_NE(result["student"]["loss"], result["alone"]["loss"]);
  EXPECT_GT(result["student"]["latency_median_s"].get<double>(), 0);
  const train::Recipe recipe = train::recipe_of_run(out);
  EXPECT_EQ(recipe.teacher, "digits_resnet");
  EXPECT_EQ(recipe.teacher_weights, out + "/teacher.safetensors");
  EXPECT_EQ(recipe.distill, 0.9);
  EXPECT_EQ(recipe.distill_temperature, 4);
  EXPECT_EQ(recipe.epochs, 2);
  EXPECT_EQ(train::recipe_of_run(out + "/alone").teacher, "");
  // The run is an ordinary one, whose accuracy is that of the table.
  const Outcome evaluated = run_bellows({"evaluate", "--run", out, "--json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_NEAR(Json::parse(evaluated.out)["accuracy"].get<double>(), result["student"]["accuracy"].get<double>(), 0.003);
  const Outcome of_teacher = run_bellows({"evaluate", "--run", teacher(), "--json"});
  EXPECT_NEAR(Json::parse(of_teacher.out)["accuracy"].get<double>(), result["teacher"]["accuracy"].get<double>(),
              0.003);
}

TEST_F(DistillCommand, ResumesAStoppedRun) {
  const std::string out = path("stopped");
  Process process({.arguments = {"distill", teacher(), "--student", "mlp", "--out", out, "--set", "epochs=2000"}});
  ASSERT_TRUE(process.wait_until([](const Outcome& so_far) { return so_far.err.find("epoch") != std::string::npos; }));
  process.signal(SIGINT);
  const Outcome stopped = process.finish();
  EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("Resume with: bellows distill " + teacher() + " --out " + out + " --resume"));
  const auto weights = std::filesystem::last_write_time(out + "/teacher.safetensors");
  const Outcome again = run_bellows({"distill", teacher(), "--student", "mlp", "--out", out});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("Pass --resume to continue it"));
  const Outcome resumed =
      run_bellows({"distill", teacher(), "--out", out, "--resume", "--accept-changes", "--set", "epochs=1", "--json"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(Json::parse(resumed.out)["student"]["model"], "mlp") << "from the recipe in the folder";
  EXPECT_EQ(std::filesystem::last_write_time(out + "/teacher.safetensors"), weights);
}

TEST_F(DistillCommand, AMovedRunResumesWithTheTeacherOfItsStart) {
  const std::string first = path("first"), moved = path("moved"), copy = path("copied_teacher"), other = path("other");
  ASSERT_EQ(run_bellows({"distill", teacher(), "--student", "mlp", "--out", first, "--set", "epochs=1"}).exit_code, 0);
  std::filesystem::rename(first, moved);
  const Outcome resumed = run_bellows({"distill", "--out", moved, "--resume", "--set", "epochs=2", "--json"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(Json::parse(resumed.out)["teacher"]["run"], teacher());
  EXPECT_EQ(Json::parse(resumed.out)["student"]["run"], moved);
  EXPECT_EQ(train::recipe_of_run(moved).teacher_weights, moved + "/teacher.safetensors");
  std::filesystem::copy(teacher(), copy, std::filesystem::copy_options::recursive);
  const Outcome same = run_bellows({"distill", copy, "--out", moved, "--resume", "--set", "epochs=2", "--json"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(Json::parse(same.out)["teacher"]["run"], copy);
  ASSERT_EQ(
      run_bellows({"train", "--data", digits(), "--set", "epochs=1", "--set", "seed=2", "--out", other}).exit_code, 0);
  const Outcome refused = run_bellows({"distill", other, "--out", moved, "--resume", "--set", "epochs=3"});
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the weights of TEACHER " + other + " are not those of the teacher"),
                                 HasSubstr("from " + teacher()), HasSubstr("Leave out TEACHER")));
}

TEST_F(DistillCommand, Problems) {
  const auto problem = [](const std::vector<std::string>& arguments, int exit_code, const std::string& words) {
    std::vector<std::string> all{"distill"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    expect_failure(exit_code == 2 ? run_forked(all) : run_bellows(all), exit_code, words);
  };
  const std::string out = path("none");
  problem({}, 2, "--out");
  problem({"--student", "mlp", "--out", out}, 2, "expected TEACHER, the run folder of the trained model");
  problem({teacher(), "--out", out, "--resume"}, 2, "--resume: there is no run in " + out + ". To start one");
  problem({"--out", teacher(), "--resume"}, 2, "was not started by `bellows distill`");
  problem({teacher(), "--student", "mlp"}, 2, "--out");
  problem({teacher(), "--out", out}, 2, "distill needs a student. Pass --student");
  problem({path("nowhere"), "--student", "mlp", "--out", out}, 1, "TEACHER: there is no folder");
  problem({teacher(), "--student", "mpl", "--out", out}, 2, "mlp");
  problem({teacher(), "--student", "mlp", "--out", teacher()}, 2, "name the same folder");
  problem({teacher(), "--student", "mlp", "--out", out, "--weight", "1.5"}, 2, "above 0 and at most 1");
  problem({teacher(), "--student", "bert-20m", "--out", out, "--set", "tokenizer=bytes"}, 2, "same kind");
  std::filesystem::create_directory(path("untrained"));
  std::filesystem::copy_file(teacher() + "/recipe.yaml", path("untrained") + "/recipe.yaml");
  problem({path("untrained"), "--student", "mlp", "--out", out}, 1,
          "TEACHER: " + path("untrained") + " contains no checkpoint");
  problem({teacher(), "--student", "mlp", "--out", out, "--set", "num_classes=3"}, 1,
          "the teacher predicts 10 classes");
  EXPECT_FALSE(std::filesystem::exists(out + "/teacher.safetensors")) << "nothing is written after an error";
}

}  // namespace bellows::cli
