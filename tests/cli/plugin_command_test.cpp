#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

const std::string test_plugin = BELLOWS_BIN_DIR "/test_plugin.so";

Outcome train_with(std::vector<std::string> arguments) {
  std::vector<std::string> all = {"train", "--data", digits(), "--set", "epochs=1", "--json"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_bellows(all);
}

void expect_usage_error(const Outcome& outcome, const std::string& words) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(words));
  EXPECT_THAT(outcome.err, ::testing::Not(HasSubstr("frame #")));
}

}  // namespace

TEST(PluginCommand, TrainsAModelOfThePluginAndResumesIt) {
  const Scratch folder;
  const Outcome first = train_with({"--plugin", test_plugin, "--model", "plugin_net", "--out", folder / "run"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(nlohmann::json::parse(first.out)["model"], "plugin_net");
  const Outcome again = run_bellows(
      {"train", "--out", folder / "run", "--resume", "--set", "epochs=2", "--plugin", test_plugin, "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["epochs"].size(), 2u);
  expect_usage_error(run_bellows({"train", "--out", folder / "run", "--resume"}), "no model is called \"plugin_net\"");
}

TEST(PluginCommand, ModelOfThePluginClimbsTheLadder) {
  const Outcome outcome = run_bellows({"ladder", "--data", digits(), "--plugin", test_plugin, "--model", "plugin_net",
                                       "--target-accuracy", "0.3", "--quick", "--max-seconds", "0.1", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["model"], "plugin_net");
}

TEST(PluginCommand, ModelOfThePluginClimbsTheInferenceLadder) {
  const Outcome outcome = run_bellows({"ladder", "--inference", "--plugin", test_plugin, "--model", "plugin_net",
                                       "--quick", "--max-seconds", "0.01", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["model"], "plugin_net (random weights)");
  EXPECT_GT(result["baseline"]["step_ms"].get<double>(), 0);
}

TEST(PluginCommand, ModelOfThePluginLearnsFromATeacher) {
  const Scratch folder;
  ASSERT_EQ(train_with({"--model", "mlp", "--out", folder / "teacher"}).exit_code, 0);
  const Outcome outcome = run_bellows({"distill", folder / "teacher", "--student", "plugin_net", "--plugin",
                                       test_plugin, "--out", folder / "student", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["student"]["model"], "plugin_net");
}

TEST(PluginCommand, TheSamePluginTwiceIsOnce) {
  const Outcome outcome = train_with({"--plugin", test_plugin, "--plugin", test_plugin, "--model", "plugin_net"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(PluginCommand, WrongPluginsAreSaidInWords) {
  const Scratch folder;
  expect_usage_error(train_with({"--plugin", "/nowhere/net.so"}), "/nowhere/net.so");
  std::ofstream(folder / "text.so") << "no library\n";
  expect_usage_error(train_with({"--plugin", folder / "text.so"}), "is not a shared library");
  expect_usage_error(train_with({"--plugin", "/bin/sh"}), "is not a plugin");
  expect_usage_error(train_with({"--plugin", BELLOWS_BIN_DIR "/test_plugin_taken.so"}), "\"resnet18\" is taken");
}

/// Versions stand in the file: a plugin of another one is refused before any of its code runs.
TEST(PluginCommand, PluginOfAnotherVersionIsRefused) {
  const Scratch folder;
  std::ifstream in(test_plugin, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const size_t mark = bytes.find("bellows-plugin-abi: Bellows ");
  ASSERT_NE(mark, std::string::npos);
  bytes[mark + 28] = '9';
  std::ofstream(folder / "other.so", std::ios::binary) << bytes;
  expect_usage_error(train_with({"--plugin", folder / "other.so"}), "was built with Bellows 9");
}

TEST(PluginCommand, UnknownModelSaysHowToBringOne) {
  expect_usage_error(train_with({"--model", "plugin_net"}), "plugin");
  expect_usage_error(train_with({"--model", "nowhere/net.pt"}), "nowhere/net.pt");
}

}  // namespace bellows::cli
