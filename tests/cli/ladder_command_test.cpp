#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "cli/terminal.h"
#include "process.h"

namespace bellows::cli {

namespace {

nlohmann::json json_file(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The letters of the longest line that was drawn, without control sequences.
size_t widest(const std::string& drawn) {
  static const std::regex control("\033\\[[0-9;?]*[A-Za-z]");
  size_t widest = 0;
  std::istringstream lines(std::regex_replace(drawn, control, ""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream redrawn(line);
    for (std::string one; std::getline(redrawn, one, '\r');) widest = std::max(widest, display_width(one));
  }
  return widest;
}

}  // namespace

TEST(LadderCommand, QuickLadderOnDigitsWritesTheFixedKeys) {
  const Scratch folder;
  const Outcome outcome =
      run_bellows({"ladder", "--data", digits(), "--target-accuracy", "0.9", "--quick", "--max-seconds", "15", "--json",
                   folder / "l.json", "--html", folder / "l.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("plain libtorch"));
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos);
  EXPECT_EQ(outcome.err.find('\033'), std::string::npos);
  const auto json = json_file(folder / "l.json");
  for (const char* key : {"machine", "baseline", "rungs", "speedup", "speedup_equal_batch"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_GE(json["rungs"].size(), 8u);
  EXPECT_GT(json["baseline"]["step_shares_ms"]["backward"].get<double>(), 0);
  EXPECT_GE(json["baseline"]["curves"][0]["seconds_samples_accuracy"].size(), 3u);
  EXPECT_THAT(read_file(folder / "l.html"), ::testing::HasSubstr("Accuracy over wall time"));
  EXPECT_GE(json["baseline"]["accuracy"].get<double>(), 0.9);
  EXPECT_GT(json["baseline"]["peak_bytes"].get<int64_t>(), 0);
  bool any_kept = false;  // not where the machine is too busy to tell anything in the time
  for (const auto& rung : json["rungs"]) {
    for (const char* key : {"technique", "kept", "step_ms", "samples_per_s", "peak_bytes", "time_to_target_s",
                            "accuracy", "speedup", "interval"}) {
      EXPECT_TRUE(rung.contains(key)) << key;
    }
    if (!rung["kept"].get<bool>()) continue;
    any_kept = true;
    EXPECT_GT(rung["judged_by"] == "time to target" ? rung["speedup"] : rung["interval"][0], 1.0) << rung;
    EXPECT_GE(rung["accuracy"].get<double>(), 0.9) << rung;
  }
  if (any_kept) {
    EXPECT_GT(json["speedup"].get<double>(), 0);
  } else {
    EXPECT_TRUE(json["speedup"].is_null()) << json["speedup"];
  }
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
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("Only the results so far are shown"));
  const auto json = json_file(folder / "l.json");
  EXPECT_TRUE(json["interrupted"].get<bool>());
  EXPECT_GT(json["baseline"]["step_ms"].get<double>(), 0);
}

TEST(LadderCommand, TheRungInProgressIsRedrawnAndFitsATerminalThatShrinks) {
  Process process(
      {.arguments = {"ladder", "--data", digits(), "--target-accuracy", "0.9", "--quick"}, .terminal = true});
  ASSERT_TRUE(process.wait_until([](const Outcome& so_far) {
    return so_far.out.find("\r\033[Kplain libtorch") != std::string::npos;
  })) << "the row is there while it is measured";
  process.resize(50);
  size_t before = 0;
  ASSERT_TRUE(process.wait_until([&](const Outcome& so_far) {
    if (before == 0) before = so_far.out.size();
    return so_far.out.size() > before + 2000 && so_far.out.find("channels-last") != std::string::npos;
  }));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_LE(widest(outcome.out), 79u);
  int redrawn = 0;
  for (size_t at = before + 500; (at = outcome.out.find("\r\033[K", at)) != std::string::npos; ++at) {
    const size_t end = outcome.out.find('\r', at + 1);
    if (end == std::string::npos || outcome.out[end + 1] == '\n') continue;  // a row that is finished
    EXPECT_LE(widest(outcome.out.substr(at, end - at)), 49u) << "drawn for the width of the moment";
    ++redrawn;
  }
  EXPECT_GT(redrawn, 3);
}

TEST(LadderCommand, MemoryHasALadderOfItsOwn) {
  const Scratch folder;
  const Outcome outcome = run_bellows({"ladder", "--data", digits(), "--target-accuracy", "0.9", "--quick", "--memory",
                                       "--max-seconds", "4", "--json", folder / "l.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("  Peak memory:"));
  const auto json = json_file(folder / "l.json");
  EXPECT_EQ(json["goal"], "memory");
  for (const auto& rung : json["rungs"]) {
    if (!rung["kept"].get<bool>()) continue;
    EXPECT_GT(rung["memory_ratio"].get<double>(), 1.01) << rung;
    EXPECT_GE(rung["accuracy"].get<double>(), 0.9) << rung;
  }
}

TEST(LadderCommand, IsNotClimbedByRanksSideBySide) {
  const Outcome outcome = run_bellows({"launch", "-n", "2", "--", BELLOWS_BIN_DIR "/bellows", "ladder", "--data",
                                       digits(), "--quick", "--max-seconds", "1"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out + outcome.err, ::testing::AllOf(::testing::HasSubstr("bellows launch started it as rank"),
                                                          ::testing::HasSubstr("of 2")));
  const Outcome list = run_bellows({"launch", "-n", "2", "--", BELLOWS_BIN_DIR "/bellows", "ladder", "--list"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
}

TEST(LadderCommand, MemoryTargetFindsARecipeThatTrainTakes) {
  const Scratch folder;
  const Outcome outcome =
      run_bellows({"ladder", "--data", digits(), "--set", "batch_size=256", "--quick", "--memory-target", "9MB",
                   "--target-accuracy", "0.3", "--json", folder / "l.json", "--html", folder / "l.html",
                   "--write-recipe", folder / "r.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  std::string words = outcome.out;
  std::ranges::replace(words, '\n', ' ');  // where lines end depends on what is chosen
  EXPECT_THAT(words, ::testing::AllOf(::testing::HasSubstr("Chosen: "),
                                      ::testing::HasSubstr("than the unchanged recipe (90 % interval")));
  EXPECT_LE(widest(outcome.out), 80u);
  const auto json = json_file(folder / "l.json");
  EXPECT_EQ(json["goal"], "memory target");
  EXPECT_EQ(json["rungs"][0]["verdict"], "too large");
  EXPECT_LE(json["chosen"]["peak_bytes"].get<int64_t>(), 9 << 20);
  EXPECT_GE(json["chosen"]["accuracy"].get<double>(), 0.3);
  const auto& first = json["rungs"][0];
  EXPECT_NEAR(first["peak_bytes"].get<double>() / first["predicted_peak_bytes"].get<double>(), 1, 0.1);
  EXPECT_THAT(read_file(folder / "l.html"), ::testing::HasSubstr("Measured recipes"));
  const Outcome trained = run_bellows({"train", "--recipe", folder / "r.yaml", "--set", "epochs=1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
}

TEST(LadderCommand, AMemoryTargetOutOfReachNamesTheSmallest) {
  const Scratch folder;
  const auto ladder = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"ladder", "--data", digits(), "--set", "batch_size=8", "--quick", "--memory-target"});
    return run_bellows(more);
  };
  const Outcome none = ladder({"1KB", "--write-recipe", folder / "n.yaml"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, ::testing::AllOf(::testing::HasSubstr("No recipe fits into 1.0 KiB"),
                                         ::testing::HasSubstr("The smallest measured peak is")));
  EXPECT_FALSE(std::filesystem::exists(folder / "n.yaml"));
  for (const char* bad : {"0", "-5G", "lots"}) {
    const Outcome refused = ladder({bad});
    EXPECT_EQ(refused.exit_code, 2) << bad;
    EXPECT_THAT(refused.err, ::testing::HasSubstr("--memory-target")) << bad;
  }
  EXPECT_EQ(ladder({"2G", "--memory"}).exit_code, 2);
  EXPECT_EQ(ladder({"2G", "--write-recipe", folder / "x", "--html", folder / "x"}).exit_code, 2);
}

TEST(LadderCommand, UnreachableTargetFailsInWords) {
  const Scratch folder;
  std::ofstream(folder / "r.yaml") << "model: mlp\nlr: 1.0e-9\nbatch_size: 512\n";
  const Outcome outcome = run_bellows({"ladder", "--data", digits(), "--recipe", folder / "r.yaml", "--quick",
                                       "--max-epochs", "2", "--json", folder / "l.json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out,
              ::testing::HasSubstr("Rung 0 is Bellows' training loop"));  // the plain program has another model
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("did not reach an accuracy of 0.97 within 2 epochs"));
  EXPECT_FALSE(std::filesystem::exists(folder / "l.json"));
}

/// The processes that measure say it, not the one that prints.
TEST(LadderCommand, ARecipeThatDoesNotGoWithItsModelIsWrongUse) {
  const auto refused = [](std::vector<std::string> arguments, const char* words) {
    arguments.insert(arguments.begin(), {"ladder", "--data", digits(), "--model", "mlp", "--quick"});
    const Outcome outcome = run_bellows(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err,
                ::testing::AllOf(::testing::HasSubstr(words), ::testing::HasSubstr("bellows ladder --help")));
  };
  refused({"--set", "tokenizer=words.json"}, "\"mlp\" does not read texts");
  refused({"--set", "recompute=blocks", "--memory-target", "1MB"}, "\"mlp\" does not define blocks");
}

TEST(LadderCommand, UnwritableJsonFails) {
  const Outcome outcome = run_bellows({"ladder", "--data", digits(), "--quick", "--json", "/nowhere/l.json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("/nowhere"));
}

}  // namespace bellows::cli
