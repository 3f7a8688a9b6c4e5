#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bellows/train/recipe/recipe.h"
#include "failure.h"
#include "forked.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

/// data/digits once more, for spoiling.
std::string copied_digits(const Scratch& folder) {
  const std::string copy = folder / "digits";
  std::filesystem::copy(digits(), copy, std::filesystem::copy_options::recursive);
  return copy;
}

}  // namespace

TEST(TrainCommand, TrainsOneEpochAndSaysSo) {
  const Scratch folder;
  const Outcome outcome =
      run_bellows({"train", "--data", digits(), "--set", "epochs=1", "--out", folder / "run", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["epochs"].size(), 1u);
  EXPECT_GT(json["epochs"][0]["eval_accuracy"].get<double>(), 0.3);
  EXPECT_FALSE(json["stopped"].get<bool>());
  EXPECT_TRUE(std::filesystem::exists(folder / "run/recipe.yaml"));
  EXPECT_TRUE(std::filesystem::exists(json["checkpoint"].get<std::string>()));
  EXPECT_EQ(outcome.err.find('\033'), std::string::npos) << "not a terminal";
  EXPECT_EQ(outcome.err.find('\r'), std::string::npos);
}

TEST(TrainCommand, PathsNeedNotBeUtf8) {
  const Scratch folder;
  const std::string data = folder / "d\xff\xfe", out = folder / "r\xff";
  std::filesystem::copy(digits(), data, std::filesystem::copy_options::recursive);
  const Outcome first =
      run_bellows({"train", "--data", data, "--model", "mlp", "--set", "epochs=1", "--out", out, "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(nlohmann::json::parse(first.out)["epochs"].size(), 1u);
  const Outcome second = run_bellows({"train", "--out", out, "--resume", "--set", "epochs=2", "--json"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(nlohmann::json::parse(second.out)["epochs"].size(), 2u);
}

TEST(TrainCommand, RefusesBeforeTrainingWhatTheLoaderOrATensorCannotHold) {
  for (const std::string item : {"prefetch=0", "max_grad_value=1e300", "lr=1e300"}) {
    const Outcome outcome = run_forked({"train", "--data", digits(), "--model", "mlp", "--set", item});
    EXPECT_EQ(outcome.exit_code, 2) << item << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(item.substr(0, item.find('='))));
  }
}

TEST(TrainCommand, UnknownRecipeKeyNamesTheNearest) {
  const Scratch folder;
  std::ofstream(folder / "r.yaml") << "epochs: 1\nbatchsize: 32\n";
  expect_failure(run_forked({"train", "--recipe", folder / "r.yaml", "--data", digits()}), 2,
                 "Did you mean \"batch_size\"?");
  expect_failure(run_forked({"train", "--data", digits(), "--set", "batchsize=32"}), 2, "Did you mean \"batch_size\"?");
  expect_failure(run_forked({"train", "--data", digits(), "--set", "batch_size=many"}), 2, "batch_size");
}

TEST(TrainCommand, FormerRecipeKeyNamesTheNewOne) {
  const Scratch folder;
  std::ofstream(folder / "r.yaml") << "epochs: 1\nclip_norm: 1\n";
  expect_failure(run_forked({"train", "--recipe", folder / "r.yaml", "--data", digits()}), 2,
                 "line 2: unknown key \"clip_norm\". The key is now called max_grad_norm.");
  expect_failure(run_forked({"train", "--data", digits(), "--set", "clip_norm=1"}), 2,
                 "unknown key \"clip_norm\". The key is now called max_grad_norm.");
}

TEST(TrainCommand, KeysListsTheKeysOfRecipes) {
  const Outcome outcome = run_bellows({"train", "--keys"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const std::string text = "\n" + outcome.out;
  size_t at = 0;
  for (const train::RecipeField& field : train::recipe_fields()) {
    at = text.find("\n  " + field.name + " ", at);
    ASSERT_NE(at, std::string::npos) << field.name << " is missing, or not in its place:\n" << outcome.out;
  }
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex(
                               "momentum of sgd, larc, rmsprop and muon \\(number, 0 to 1\\)\n +\\[default: 0.9\\]\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[default: \"\"]"));
}

TEST(TrainCommand, KeysAsJson) {
  const Outcome outcome = run_bellows({"train", "--keys", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto keys = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(keys.size(), train::recipe_fields().size());
  EXPECT_EQ(keys[0]["key"].get<std::string>(), "model");
  EXPECT_EQ(keys[0]["default"].get<std::string>(), train::Recipe{}.model);
  const auto lr = std::find_if(keys.begin(), keys.end(), [](const auto& key) { return key["key"] == "lr"; });
  ASSERT_TRUE(lr != keys.end());
  EXPECT_EQ((*lr)["type"].get<std::string>(), "number");
  EXPECT_EQ((*lr)["values"].get<std::string>(), "at least 0");
  EXPECT_EQ((*lr)["default"].get<double>(), train::Recipe{}.lr);
}

TEST(TrainCommand, MissingThingsAreNamed) {
  expect_failure(run_forked({"train", "--recipe", "/nowhere/r.yaml"}), 2, "/nowhere/r.yaml");
  expect_failure(run_forked({"train", "--data", "/nowhere/digits"}), 1, "/nowhere/digits");
  expect_failure(run_forked({"train", "--data", digits(), "--model", "digits_resnt"}), 2,
                 "Did you mean \"digits_resnet\"?");
}

TEST(TrainCommand, WrongDeviceSaysWhatThereIs) {
  expect_failure(run_forked({"train", "--data", digits(), "--set", "device=cuda:99"}), 2, "cuda:99");
}

TEST(TrainCommand, CorruptShardNamesFileAndPlace) {
  const Scratch folder;
  const std::string data = copied_digits(folder);
  std::fstream shard(data + "/train-001.tar", std::ios::in | std::ios::out | std::ios::binary);
  shard.write("this is no tar header at all, not even nearly so", 48);
  shard.close();
  expect_failure(run_bellows({"train", "--data", data, "--set", "epochs=1"}), 1, "train-001.tar");
  std::filesystem::resize_file(data + "/train-001.tar", 100);
  expect_failure(run_bellows({"train", "--data", data, "--set", "epochs=1"}), 1, "train-001.tar");
}

TEST(TrainCommand, ZeroSizeDataIsAnError) {
  const Scratch folder;
  std::filesystem::create_directory(folder / "empty");
  expect_failure(run_forked({"train", "--data", folder / "empty"}), 1, "empty");
}

TEST(TrainCommand, UnwritableOutFolder) {
  const Scratch folder;
  std::ofstream(folder / "file") << "in the way\n";
  expect_failure(run_forked({"train", "--data", digits(), "--out", folder / "file/run"}), 1, "file");
  if (geteuid() == 0) {  // root may write anywhere but here
    expect_failure(run_forked({"train", "--data", digits(), "--out", "/proc/run"}), 1, "/proc/run");
    return;
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  expect_failure(run_forked({"train", "--data", digits(), "--out", folder / "run"}), 1, "Permission denied");
}

// A disk that is full in the middle of a checkpoint: the limit on file size stands in for it.
TEST(TrainCommand, FullDiskIsSaidAndLeavesNoHalfCheckpoint) {
  const Scratch folder;
  const Outcome outcome =
      Process({.arguments = {"train", "--data", digits(), "--set", "epochs=1", "--out", folder / "run"},
               .file_limit = 64 * 1024})
          .finish();
  expect_failure(outcome, 1, "File too large");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "run")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
}

TEST(TrainCommand, ResultThatCannotBeWrittenFailsBeforeTheWork) {
  expect_failure(run_forked({"train", "--data", digits(), "--json", "/nowhere/result.json"}), 1, "/nowhere");
}

// One text set, three verbs.
TEST(TextCommands, TrainPlanAndClimb) {
  const Scratch folder;
  const std::string text = std::string(BELLOWS_SOURCE_DIR) + "/examples/07_text";
  const std::vector<std::string> job = {"--model", text + "/config.json", "--set", "tokenizer=" + text + "/vocab.txt",
                                        "--set",   "optimizer=adamw",     "--set", "lr=2e-3"};
  const auto with_job = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), job.begin(), job.end());
    return run_bellows(arguments);
  };
  const Outcome trained =
      with_job({"train", "--data", text + "/set", "--set", "epochs=5", "--out", folder / "run", "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_GT(nlohmann::json::parse(trained.out)["eval_accuracy"].get<double>(), 0.35) << "four classes";
  const Outcome planned = with_job({"plan", "--seq", "64", "--batch", "16", "--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("\"length\": 64,"));
  const Outcome climbed = with_job({"ladder", "--data", text + "/set", "--target-accuracy", "0.3", "--quick",
                                    "--max-seconds", "15", "--json", folder / "l.json"});
  ASSERT_EQ(climbed.exit_code, 0) << climbed.out << climbed.err;
  EXPECT_THAT(climbed.out, HasSubstr("length buckets"));
  expect_failure(run_bellows({"train", "--data", text + "/set", "--model", text + "/config.json"}), 1,
                 "Set tokenizer to bytes, or to a vocab.txt");
  expect_failure(run_forked({"train", "--data", text + "/set", "--model", "distilbert"}), 2,
                 "no model is called \"distilbert\". Known: ");
}

}  // namespace bellows::cli
