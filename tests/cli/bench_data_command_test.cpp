#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "process.h"

namespace bellows::cli {

using testing::HasSubstr;

TEST(BenchData, ReportsRateStagesAndAdvice) {
  const Outcome outcome = run_bellows({"bench-data", digits(), "--split", "test", "--epochs", "2", "--threads", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Loader: 718 samples in "));
  EXPECT_THAT(outcome.out, HasSubstr("  decode"));
  EXPECT_THAT(outcome.out, HasSubstr("next() waited"));
}

TEST(BenchData, WritesJsonAndATrace) {
  const Scratch scratch;
  const Outcome outcome = run_bellows({"bench-data", digits(), "--split", "train", "--seconds", "0.5", "--shuffle",
                                       "--json", "--trace", scratch / "load.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_GT(json["samples"], 0);
  EXPECT_TRUE(json["auto_threads"]);
  EXPECT_FALSE(json["advice"]["sentence"].get<std::string>().empty());
  EXPECT_GT(json["stages"]["decode"]["total_s"], 0);
  std::ifstream file(scratch / "load.json");
  EXPECT_FALSE(nlohmann::json::parse(file)["traceEvents"].empty());
}

TEST(BenchData, WrongUseExitsWith2AndBadDataWith1) {
  EXPECT_EQ(run_bellows({"bench-data"}).exit_code, 2);
  const Outcome threads = run_bellows({"bench-data", digits(), "--threads", "many"});
  EXPECT_EQ(threads.exit_code, 2);
  EXPECT_THAT(threads.err, HasSubstr("a number up to 1024, or auto"));
  EXPECT_EQ(run_bellows({"bench-data", "/nowhere/at/all.tar"}).exit_code, 1);
}

}  // namespace bellows::cli
