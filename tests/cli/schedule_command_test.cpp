#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "failure.h"
#include "forked.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

void expect_schedule_failure(std::vector<std::string> arguments, const std::string& message) {
  arguments.insert(arguments.begin(), "schedule");
  const Outcome outcome = run_forked(arguments);
  expect_failure(outcome, 2, message);
  EXPECT_EQ(outcome.out, "");
}

}  // namespace

TEST(ScheduleCommand, PrintsTheBubbleAndTheActions) {
  const Outcome outcome = run_forked({"schedule", "1f1b", "--ranks", "2", "--micro-batches", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("1f1b: 2 stages on 2 ranks, 3 micro-batches\n"));
  EXPECT_THAT(outcome.out, HasSubstr("A step takes 12.0 ms, and the bubble share is 25.0 %.\n"));  // 1 / 4
  EXPECT_THAT(outcome.out, HasSubstr("     0            2      9.00      25.0\n"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 0:\n  F0.0 F0.1 B0.0 F0.2 B0.1 B0.2\n"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 1:\n  F1.0 B1.0 F1.1 B1.1 F1.2 B1.2\n"));
}

TEST(ScheduleCommand, WritesAllFiles) {
  const Scratch folder;
  const std::string page = folder / "page.html", trace = folder / "trace.json", table = folder / "own.txt",
                    json = folder / "result.json";
  const Outcome outcome =
      run_forked({"schedule", "zero_bubble", "--forward-ms", "3", "--backward-ms", "6", "--transfer-ms", "0.5",
                  "--html", page, "--trace", trace, "--out", table, "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(read_text_file(page), HasSubstr("<title>Pipeline schedule zero_bubble</title>"));
  EXPECT_TRUE(nlohmann::json::parse(read_text_file(trace)).contains("traceEvents"));
  const auto written = nlohmann::json::parse(read_text_file(json));
  EXPECT_EQ(written["ranks"].size(), 4u);
  EXPECT_EQ(written["ranks"][0]["actions"].size(), 3u * 8);
  EXPECT_NEAR(written["ranks"][0]["work_ms"].get<double>(), 8 * 9.0, 1e-9);
  // The table is a schedule that the command reads again.
  const Outcome again =
      run_forked({"schedule", table, "--forward-ms", "3", "--backward-ms", "6", "--transfer-ms", "0.5", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out), written);
}

TEST(ScheduleCommand, KnowsAllSchedules) {
  const std::vector<std::pair<std::string, double>> shares = {
      {"gpipe", 3.0 / 11}, {"1f1b", 3.0 / 11}, {"interleaved", 3.0 / 19}, {"zero_bubble", 3.0 / 27}};
  for (const auto& [name, share] : shares) {
    const Outcome outcome = run_forked({"schedule", name, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NEAR(nlohmann::json::parse(outcome.out)["bubble_share"].get<double>(), share, 1e-9) << name;
  }
}

TEST(ScheduleCommand, ExplainsWrongUse) {
  const Scratch folder;
  expect_schedule_failure({"1f2b"},
                          "expected gpipe, 1f1b, interleaved, zero_bubble or the path of a schedule file, got 1f2b");
  expect_schedule_failure({"interleaved", "--micro-batches", "6"}, "must be a multiple of the number of ranks, 4");
  expect_schedule_failure({"gpipe", "--stages-per-rank", "2"}, "--stages-per-rank applies only to interleaved");
  expect_schedule_failure({"gpipe", "--ranks", "0"}, "--ranks: expected an integer");
  expect_schedule_failure({"gpipe", "--forward-ms", "0"}, "--forward-ms: expected a number of milliseconds above 0");
  std::ofstream(folder / "own.txt") << "schedule s\nmicro_batches 1\nstage_ranks 0 1\nrank 0: B0.0 F0.0\n"
                                       "rank 1: F1.0 B1.0\n";
  expect_schedule_failure({folder / "own.txt"}, "own.txt: schedule s: rank 0 waits forever before B0.0");
  expect_schedule_failure({folder / "own.txt", "--ranks", "2"}, "--ranks and --micro-batches apply to gpipe");
  EXPECT_EQ(run_forked({"schedule"}).exit_code, 2);
}

}  // namespace bellows::cli
