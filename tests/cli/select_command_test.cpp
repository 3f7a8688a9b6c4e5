#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "forked.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_select_failure(std::vector<std::string> arguments, int exit_code, const std::string& words) {
  const Scratch folder;
  arguments.insert(arguments.begin(), "select");
  arguments.insert(arguments.end(), {"--out", folder / "subset.json"});
  const Outcome outcome = exit_code == 2 ? run_forked(arguments) : run_bellows(arguments);
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(words), Not(HasSubstr(".cpp")), Not(HasSubstr("({"))));
  EXPECT_FALSE(std::filesystem::exists(folder / "subset.json"));
}

}  // namespace

TEST(SelectCommand, WhatIsTypedWrongIsSaidFirst) {
  expect_select_failure({"--run", "/nowhere", "--by", "forgeting", "--keep", "0.5"}, 2,
                        "Did you mean \"forgetting\"? The rules are: forgetting, el2n, loss, margin, entropy, random.");
  expect_select_failure({"--data", digits(), "--by", "forgeting", "--count", "5"}, 2,
                        "no rule for samples with labels");
  expect_select_failure({"--run", "/nowhere", "--by", "el2n", "--add", "5"}, 2,
                        "The rules are: least_confidence, margin, ");
  expect_select_failure({"--data", digits(), "--by", "loss", "--count", "5"}, 2, "needs the folder of a run");
  expect_select_failure({"--data", digits(), "--by", "random", "--count", "5", "--seed", "-1"}, 2, "--seed: ");
}

TEST(SelectCommand, ReplacesASubsetAndNoOtherFile) {
  const Scratch folder;
  std::ofstream(folder / "notes.json") << "{\"mine\": 1}";
  const auto select = [](const std::string& out) {
    return run_bellows({"select", "--data", digits(), "--by", "random", "--count", "5", "--out", out, "--json"});
  };
  const Outcome refused = select(folder / "notes.json");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--out: " + folder / "notes.json" + " already exists and is not a subset file"));
  EXPECT_EQ(read_text_file(folder / "notes.json"), "{\"mine\": 1}");
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = select(folder / "s\xff.json");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(nlohmann::json::parse(outcome.out)["samples"], 5);
  }
}

TEST(SelectCommand, NamesTheSplitsInPlainWords) {
  expect_select_failure({"--data", digits(), "--split", "tran", "--by", "random", "--count", "5"}, 1,
                        "Did you mean \"train\"? The splits are: test, train.");
  expect_select_failure({"--data", digits() + "/train-000.tar", "--split", "train", "--by", "random", "--count", "5"},
                        1, "Name the shards of the split instead.");
  const Outcome outcome = run_bellows({"bench-data", digits()});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has several splits: test, train. Choose one with the option --split"));
}

// A folder of shards that have no test among them.
TEST(SelectCommand, AndTrainingKeepTheSameSamplesForEvaluation) {
  const Scratch folder;
  std::filesystem::create_directory(folder / "set");
  std::filesystem::copy(digits() + "/train-000.tar", folder / "set/photos-000.tar");
  const Outcome selected =
      run_bellows({"select", "--data", folder / "set", "--by", "random", "--count", "300", "--out", folder / "s.json"});
  EXPECT_THAT(selected.out, HasSubstr("300 of 360 samples (300 of 324 at random")) << selected.err;
  const Outcome trained = run_bellows({"train", "--data", folder / "set", "--model", "mlp", "--set", "epochs=1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("Held out for evaluation: 36 of 360 samples, the same ones in every run"));
  EXPECT_THAT(trained.out, HasSubstr("accuracy "));
}

}  // namespace bellows::cli
