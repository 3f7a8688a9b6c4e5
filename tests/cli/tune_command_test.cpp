#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/comm/rendezvous/store.h"
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

TEST(TuneCommand, StatesThatNoTrialSatisfiesTheConstraints) {
  const Scratch folder;
  std::ofstream(folder / "s.yaml") << study_text("constraints: {accuracy: {at_least: 0.9999}}\ntrials: 1\n");
  const Outcome outcome = run_bellows({"tune", folder / "s.yaml", "--out", folder / "out"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("No trial satisfies the constraints: accuracy at least 0.9999"));
  EXPECT_THAT(outcome.out, HasSubstr("Trials: 1 complete (1 outside of the constraints)"));
}

TEST(TuneCommand, SuggestsALearningRate) {
  const Scratch folder;
  std::ofstream(folder / "digits.yaml") << "data: " << digits() << "\nmodel: mlp\n";
  const Outcome outcome = run_bellows({"tune", folder / "digits.yaml", "--lr-range"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Suggested: lr: "));
}

TEST(TuneCommand, FindsABatchSizeThatFits) {
  const Scratch folder;
  std::ofstream(folder / "digits.yaml") << "data: " << digits() << "\nmodel: mlp\nbatch_size: 64\nnum_workers: 0\n";
  const Outcome outcome =
      run_bellows({"tune", folder / "digits.yaml", "--batch-size", "--json", "--write-recipe", folder / "fast.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["largest"], 1438);  // all samples
  const int64_t fastest = json["fastest"];
  EXPECT_THAT(read_text_file(folder / "fast.yaml"), HasSubstr("batch_size: " + std::to_string(fastest) + "\n"));
  EXPECT_GT(json["trials"][0]["peak_bytes"], 20e6);
  expect_failure(run_bellows({"tune", folder / "digits.yaml", "--batch-size", "--jobs", "2"}), 2, "--jobs");
  expect_failure(run_bellows({"tune", folder / "digits.yaml", "--memory", "1GB"}), 2, "--batch-size");
}

// The signal may arrive before the first trial, or while a trial runs.
TEST(TuneCommand, ASignalEndsTheSearchForABatchSize) {
  const Scratch folder, temporary;
  std::ofstream(folder / "digits.yaml") << "data: " << digits() << "\nmodel: mlp\nbatch_size: 8\n";
  for (const char* moment : {".", "batch-8"}) {
    Process search(
        {.arguments = {"tune", folder / "digits.yaml", "--batch-size"}, .environment = {"TMPDIR=" + temporary.path()}});
    const auto reached = [&](const Outcome&) {
      const auto files = std::filesystem::directory_iterator(temporary.path());
      return std::ranges::any_of(files,
                                 [&](const auto& file) { return std::filesystem::exists(file.path() / moment); });
    };
    ASSERT_TRUE(search.wait_until(reached)) << moment;
    search.signal(SIGINT);
    const Outcome outcome = search.finish();
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("stopped on request."));
    EXPECT_TRUE(std::filesystem::is_empty(temporary.path())) << moment;
  }
}

TEST(TuneCommand, TrialsRunOnSeveralNodes) {
  const Scratch folder;
  const std::string file = folder / "rates.yaml", json = folder / "result.json";
  std::ofstream(file) << study_text();
  const std::string port = std::to_string(comm::Store::serve("127.0.0.1", 0).port());
  const auto node = [&](const std::string& rank) {
    return Launch{
        .arguments = {"launch", "-n", "1", "--nnodes", "2", "--node-rank", rank, "--rdzv", "127.0.0.1:" + port, "--",
                      BELLOWS_BIN_DIR "/bellows", "tune", file, "--out", folder / ("node" + rank), "--json", json},
        .environment = {"BELLOWS_TOKEN=secret"}};
  };
  Process first(node("0")), second(node("1"));
  const Outcome of_first = first.finish(), of_second = second.finish();
  EXPECT_EQ(of_first.exit_code, 0) << of_first.err;
  EXPECT_EQ(of_second.exit_code, 0) << of_second.err;
  EXPECT_EQ(nlohmann::json::parse(read_text_file(json))["best"]["values"]["lr"], "0.05");
  EXPECT_TRUE(std::filesystem::exists(folder / "node0/trial-0000/result.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "node1/trial-0001/result.json"));
}

TEST(TuneCommand, ATrialCanHaveSeveralRanks) {
  const Scratch folder;
  std::ofstream(folder / "s.yaml") << study_text("ranks: 2\ntrials: 1\n");
  const Outcome outcome = run_bellows({"tune", folder / "s.yaml", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_GT(nlohmann::json::parse(outcome.out)["best"]["metrics"]["peak_memory"], 200e6);  // of both ranks
  EXPECT_THAT(read_text_file(folder / "s/trial-0000/output.txt"), HasSubstr("[rank 0]"));
  std::ofstream(folder / "zero.yaml") << study_text("ranks: 0\n");
  expect_failure(run_bellows({"tune", folder / "zero.yaml"}), 2, "ranks: expected an integer of at least 1, got 0");
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
