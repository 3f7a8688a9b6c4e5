#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/system/file.h"
#include "failure.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

void expect_profile_failure(std::vector<std::string> arguments, const std::string& message) {
  arguments.insert(arguments.begin(), "profile");
  const Outcome outcome = run_bellows(arguments);
  expect_failure(outcome, 2, message);
  EXPECT_EQ(outcome.out, "");
}

}  // namespace

TEST(ProfileCommand, PrintsTheAnswerAndWritesAllFiles) {
  const Scratch folder;
  const std::string page = folder / "page.html", trace = folder / "trace.json", json = folder / "result.json";
  const Outcome outcome =
      run_bellows({"profile", "--data", digits(), "--steps", "2", "--set", "batch_size=2", "--set",
                   "optimizer_impl=loop", "--batch-sweep", "--html", page, "--trace", trace, "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(" limits this step: "));
  EXPECT_THAT(outcome.out, HasSubstr("digits_resnet, batches of 2, "));
  EXPECT_THAT(outcome.out, HasSubstr("The batch is too small for batch norm"));
  EXPECT_THAT(outcome.out, HasSubstr("--set batch_size=16"));
  EXPECT_THAT(outcome.out, HasSubstr("convolution_backward (b)"));
  EXPECT_THAT(read_text_file(page), HasSubstr("<title>Profile of digits_resnet</title>"));
  EXPECT_TRUE(nlohmann::json::parse(read_text_file(trace)).contains("traceEvents"));
  const auto written = nlohmann::json::parse(read_text_file(json));
  EXPECT_EQ(written["batch_size"], 2);
  EXPECT_EQ(written["step"]["steps"], 2);
  EXPECT_GT(written["step"]["ops"].size(), 10u);
  EXPECT_GT(written["findings"].size(), 0u);
  EXPECT_GE(written["batch_sweep"].size(), 2u);
  EXPECT_EQ(written["batch_sweep"][1]["batch_size"], 4);
  EXPECT_THAT(outcome.out, HasSubstr("batch size   samples/s"));
  for (const char* peak : {"fp32_flops", "bytes_per_second", "call_s"}) EXPECT_GT(written["step"]["peaks"][peak], 0);
}

TEST(ProfileCommand, ProfilesTheRanksOfALauncher) {
  const Scratch folder;
  const std::string page = folder / "page.html", trace = folder / "trace.json", json = folder / "result.json";
  const auto launched = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"launch", "-n", "2", "--", BELLOWS_BIN_DIR "/bellows", "profile", "--data",
                                         digits(), "--set", "model=mlp", "--set", "batch_size=8", "--steps", "2"});
    return run_bellows(arguments);
  };
  const Outcome outcome =
      launched({"--html", page, "--trace", trace, "--tensorboard", folder / "logs", "--json", json});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] mlp, batches of 8, "));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] collectives per step"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("[rank 1]"))) << "rank 0 prints the results of all ranks";
  EXPECT_THAT(read_text_file(page), HasSubstr("<h2>Ranks</h2>"));
  const auto written = nlohmann::json::parse(read_text_file(json));
  EXPECT_EQ(written["batch_size"], 8);
  ASSERT_EQ(written["ranks"]["ranks"].size(), 2u);
  EXPECT_EQ(written["ranks"]["ranks"][1]["steps"].size(), 2u);
  EXPECT_EQ(written["ranks"]["collectives"][0]["name"], "all_reduce");
  std::set<std::string> names;
  std::set<int64_t> processes;
  const auto traced = nlohmann::json::parse(read_text_file(trace));
  for (const auto& event : traced["traceEvents"]) {
    names.insert(event["name"] == "process_name" ? event["args"]["name"] : event["name"]);
    processes.insert(event["pid"].get<int64_t>());
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"rank 0", "rank 1", "wait: gradients", "all_reduce", "forward"}));
  EXPECT_EQ(processes.size(), 2u);
  size_t workers = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder / "logs"))
    workers += file.path().string().ends_with(".pt.trace.json") ? 1 : 0;
  EXPECT_EQ(workers, 2u);
  const Outcome refused = launched({"--batch-sweep"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.out + refused.err, HasSubstr("--batch-sweep works only with one process."));
}

TEST(ProfileCommand, ExplainsWrongUse) {
  expect_profile_failure({}, "profile needs a dataset. Pass --data, or set the key data in the recipe.");
  expect_profile_failure({"--data", digits(), "--steps", "0"}, "--steps: expected an integer");
  expect_profile_failure({"--data", digits(), "--set", "nothing=1"}, "nothing");
}

}  // namespace bellows::cli
