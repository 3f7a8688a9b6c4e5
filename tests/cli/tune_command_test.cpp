#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "failure.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

std::string study_text(const std::string& more = "") {
  return "recipe: {data: " + digits() + ", model: mlp, epochs: 1}\nspace:\n  lr: [0.05, 1e-6]\nsampler: grid\n" + more;
}

}  // namespace

TEST(TuneCommand, FindsTheBetterRateAndResumes) {
  const Scratch folder;
  const std::string file = folder / "rates.yaml", page = folder / "page.html";
  std::ofstream(file) << study_text();
  const Outcome first = run_bellows({"tune", file, "--trials", "1"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("Trials: 1 complete, 0 pruned, 0 failed."));
  expect_failure(run_bellows({"tune", file}), 1, "already contains a search");
  const Outcome outcome = run_bellows({"tune", file, "--resume", "--json", "--html", page});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["trials"].size(), 2u);
  EXPECT_EQ(json["best"]["values"]["lr"], "0.05");
  EXPECT_GT(json["best"]["metrics"]["accuracy"], 0.5);
  EXPECT_GT(json["best"]["metrics"]["peak_memory"], 20e6);
  EXPECT_THAT(read_text_file(folder / "rates/best.yaml"), HasSubstr("lr: 0.05\n"));
  EXPECT_THAT(read_text_file(page), HasSubstr("Best accuracy"));
}

TEST(TuneCommand, StatesThatNoTrialHoldsTheConstraints) {
  const Scratch folder;
  std::ofstream(folder / "s.yaml") << study_text("constraints: {accuracy: {at_least: 0.9999}}\ntrials: 1\n");
  const Outcome outcome = run_bellows({"tune", folder / "s.yaml", "--out", folder / "out"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("No trial holds the constraints: accuracy at least 0.9999"));
  EXPECT_THAT(outcome.out, HasSubstr("Trials: 1 complete (1 outside of the constraints)"));
}

TEST(TuneCommand, SuggestsALearningRate) {
  const Scratch folder;
  std::ofstream(folder / "digits.yaml") << "data: " << digits() << "\nmodel: mlp\n";
  const Outcome outcome = run_bellows({"tune", folder / "digits.yaml", "--lr-range"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Suggested: lr: "));
}

TEST(TuneCommand, RejectsUnusableStudies) {
  const Scratch folder;
  const std::string file = folder / "s.yaml";
  std::ofstream(file) << "space: {lrr: [1]}\n";
  expect_failure(run_bellows({"tune", file}), 2, "Did you mean \"lr\"?");
  std::ofstream(folder / "study") << study_text();
  expect_failure(run_bellows({"tune", folder / "study"}), 2, "Pass --out");
  expect_failure(run_bellows({"tune", folder / "missing.yaml"}), 2, "missing.yaml");
  std::ofstream(file) << study_text();
  std::filesystem::create_directories(folder / "s");
  std::ofstream(folder / "s/trials.jsonl") << "{}\n";
  expect_failure(run_bellows({"tune", file, "--resume"}), 1, "line 1: the line is damaged");
}

}  // namespace bellows::cli
