#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/data/dataset.h"
#include "bellows/system/file.h"
#include "failure.h"
#include "forked.h"
#include "process.h"

namespace bellows::cli {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MakeDataCommand, WritesSplitsThatTrainReads) {
  const Scratch folder;
  const std::string shapes = folder / "shapes";
  const std::vector<std::string> arguments = {"make-data", shapes, "--train", "60", "--test", "40", "--size", "16"};
  const Outcome outcome = run_bellows(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("train: 60 synthetic images of 16x16 in 20 classes"),
                                 HasSubstr("test: 40 synthetic images"), HasSubstr("Synthetic dataset: " + shapes)));
  EXPECT_THAT(outcome.err, HasSubstr("writing 60/60 samples"));
  const data::Dataset train = data::open(shapes, {.split = "train"});
  EXPECT_EQ(train.size(), 60);
  EXPECT_EQ(train.info().classes.size(), 20u);
  EXPECT_EQ(train.info().mean.size(), 3u);
  const Outcome trained = run_bellows({"train", "--data", shapes, "--model", "digits_resnet", "--set", "epochs=1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;

  const std::string before = read_text_file(shapes + "/train-000000.pack");
  const Outcome again = run_bellows(arguments);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("train: 60 synthetic images of 16x16 in 20 classes, already written"));
  EXPECT_EQ(read_text_file(shapes + "/train-000000.pack"), before);
}

TEST(MakeDataCommand, SameOptionsGiveTheSameBytes) {
  const Scratch folder;
  const auto make = [&](const std::string& name, const char* threads, const char* seed) {
    const Outcome outcome = run_forked({"make-data", folder / name, "--train", "40", "--test", "20", "--size", "16",
                                        "--format", "webdataset", "--threads", threads, "--seed", seed, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto json = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(json["synthetic"], true);
    EXPECT_EQ(json["splits"]["test"]["samples"], 20);
    return read_text_file(folder / name + "/train-000000.tar");
  };
  const std::string one = make("one", "1", "3");
  EXPECT_EQ(make("two", "2", "3"), one);
  EXPECT_NE(make("three", "2", "4"), one);
}

TEST(MakeDataCommand, WrongUseIsNamed) {
  const Scratch folder;
  const std::string out = folder / "out";
  expect_failure(run_forked({"make-data"}), 2, "DST");
  expect_failure(run_forked({"make-data", out, "--size", "8"}), 2, "--size");
  expect_failure(run_forked({"make-data", out, "--train", "0"}), 2, "--train");
  expect_failure(run_forked({"make-data", out, "--seed", "-1"}), 2, "--seed");
  expect_failure(run_forked({"make-data", out, "--format", "webdatset"}), 2, "Did you mean \"webdataset\"?");
  expect_failure(run_forked({"make-data", out, "--format", "folder"}), 2, "cannot hold several splits in one folder");
  expect_failure(run_forked({"make-data", folder / "a.tar"}), 2, "expected the name of a folder");
  EXPECT_FALSE(std::filesystem::exists(out));
  ASSERT_EQ(run_forked({"make-data", out, "--train", "20", "--test", "20", "--size", "16"}).exit_code, 0);
  expect_failure(run_forked({"make-data", out, "--train", "20", "--test", "20", "--size", "16", "--seed", "2"}), 1,
                 "already has a split \"train\" with other images");
}

}  // namespace bellows::cli
