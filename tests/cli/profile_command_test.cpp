#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

TEST(ProfileCommand, ExplainsWrongUse) {
  expect_profile_failure({}, "profile needs a dataset. Pass --data, or set the key data in the recipe.");
  expect_profile_failure({"--data", digits(), "--steps", "0"}, "--steps: expected an integer");
  expect_profile_failure({"--data", digits(), "--set", "nothing=1"}, "nothing");
}

}  // namespace bellows::cli
