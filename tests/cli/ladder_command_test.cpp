#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "process.h"

namespace bellows::cli {

namespace {

nlohmann::json json_file(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace

TEST(LadderCommand, QuickLadderOnDigitsWritesTheFixedKeys) {
  const Scratch folder;
  const Outcome outcome =
      run_bellows({"ladder", "--data", digits(), "--target-accuracy", "0.9", "--quick", "--json", folder / "l.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("plain libtorch"));
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos);
  EXPECT_EQ(outcome.err.find('\033'), std::string::npos);
  const auto json = json_file(folder / "l.json");
  for (const char* key : {"machine", "baseline", "rungs", "speedup", "speedup_equal_batch"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["rungs"].size(), 8u);
  EXPECT_GE(json["baseline"]["accuracy"].get<double>(), 0.9);
  EXPECT_GT(json["baseline"]["peak_bytes"].get<int64_t>(), 0);
  for (const auto& rung : json["rungs"]) {
    for (const char* key : {"technique", "kept", "step_ms", "samples_per_s", "peak_bytes", "time_to_target_s",
                            "accuracy", "speedup", "interval"}) {
      EXPECT_TRUE(rung.contains(key)) << key;
    }
    if (!rung["kept"].get<bool>()) continue;
    EXPECT_GT(rung["interval"][0].get<double>(), 1) << rung;
    EXPECT_GE(rung["accuracy"].get<double>(), 0.9) << rung;
  }
  EXPECT_GT(json["speedup"].get<double>(), 0);
}

TEST(LadderCommand, CtrlCEndsItWithWhatWasMeasured) {
  const Scratch folder;
  Process process({.arguments = {"ladder", "--data", digits(), "--target-accuracy", "0.9", "--quick", "--json",
                                 folder / "l.json"}});
  ASSERT_TRUE(process.wait_until(
      [](const Outcome& so_far) { return so_far.out.find("plain libtorch  ") != std::string::npos; }));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("what stands above was measured"));
  const auto json = json_file(folder / "l.json");
  EXPECT_TRUE(json["interrupted"].get<bool>());
  EXPECT_GT(json["baseline"]["step_ms"].get<double>(), 0);
}

TEST(LadderCommand, UnreachableTargetFailsInWords) {
  const Scratch folder;
  std::ofstream(folder / "r.yaml") << "model: mlp\nlr: 1.0e-9\nbatch_size: 512\n";
  const Outcome outcome = run_bellows(
      {"ladder", "--data", digits(), "--recipe", folder / "r.yaml", "--quick", "--json", folder / "l.json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, testing::HasSubstr("Rung 0 is Bellows' loop"));  // the plain program knows another model
  EXPECT_THAT(outcome.err, testing::HasSubstr("did not reach an accuracy of 0.97"));
  EXPECT_FALSE(std::filesystem::exists(folder / "l.json"));
}

TEST(LadderCommand, UnwritableJsonFails) {
  const Outcome outcome = run_bellows({"ladder", "--data", digits(), "--quick", "--json", "/nowhere/l.json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, testing::HasSubstr("/nowhere"));
}

}  // namespace bellows::cli
