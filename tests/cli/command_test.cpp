#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "forked.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void expect_width(const std::string& text, size_t columns) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto letters = std::count_if(line.begin(), line.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
    EXPECT_LE(static_cast<size_t>(letters), columns) << line;
  }
}

void expect_no_control_characters(const std::string& text) {
  for (const char byte : text) {
    if (static_cast<unsigned char>(byte) < 0x20 && byte != '\n')
      ADD_FAILURE() << "byte " << int{byte} << " in:\n" << text;
  }
}

}  // namespace

TEST(Command, HelpHasAnExampleAndFits80Columns) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"train", "--help"},
                                             {"ladder", "--help"},
                                             {"plan", "--help"},
                                             {"bench-data", "--help"},
                                             {"bench-model", "--help"},
                                             {"serve", "--help"},
                                             {"perf", "--help"},
                                             {"deploy", "--help"},
                                             {"pack", "--help"},
                                             {"make-data", "--help"},
                                             {"evaluate", "--help"},
                                             {"quantize", "--help"},
                                             {"distill", "--help"},
                                             {"predict", "--help"},
                                             {"profile", "--help"},
                                             {"schedule", "--help"},
                                             {"simulate", "--help"},
                                             {"tune", "--help"},
                                             {"import", "--help"},
                                             {"select", "--help"},
                                             {"launch", "--help"},
                                             {"checkpoint", "--help"},
                                             {"checkpoint", "info", "--help"},
                                             {"checkpoint", "export", "--help"},
                                             {"cache", "--help"},
                                             {"cache", "list", "--help"},
                                             {"cache", "clear", "--help"},
                                             {"cache", "keygen", "--help"},
                                             {"cache", "export", "--help"},
                                             {"cache", "import", "--help"},
                                             {"doctor", "--help"}}) {
    const Outcome outcome = run_forked(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Example")) << arguments[0];
    EXPECT_THAT(outcome.out, HasSubstr("  bellows "));
    EXPECT_EQ(outcome.err, "");
    expect_width(outcome.out, 80);
  }
}

TEST(Command, HelpNamesGroupsAndDefaults) {
  const std::string ladder = run_forked({"ladder", "--help"}).out;
  for (const char* words : {"\nData and model:\n", "\nMeasurement:\n", "\nOutput:\n", "\nGeneral:\n",
                            "[default: from the recipe, otherwise 0.97]", "[default: 30]", "-h, --help"}) {
    EXPECT_THAT(ladder, HasSubstr(words));
  }
  EXPECT_THAT(run_forked({"launch", "--help"}).out,
              ::testing::AllOf(HasSubstr("Usage: bellows launch [OPTIONS] -- COMMAND...\n"), HasSubstr("[required]")));
  EXPECT_THAT(run_forked({"predict", "--help"}).out, HasSubstr("Usage: bellows predict [OPTIONS] [FILES...]\n"));
  EXPECT_THAT(run_forked({"select", "--help"}).out,
              ::testing::AllOf(HasSubstr("(exactly one of these):\n  --keep SHARE"), Not(HasSubstr("Option Group"))));
}

/// The widest line of a help text on a terminal with so many columns.
size_t help_width(int columns) {
  const std::string shell = "stty cols " + std::to_string(columns) + "; exec \"$@\"";
  const Outcome outcome =
      Process({.arguments = {"train", "--help"}, .terminal = true, .prefix = {"sh", "-c", shell, "sh"}}).finish();
  size_t widest = 0;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.find_last_not_of("\r\n") + 1);
  return widest;
}

TEST(Command, HelpUsesTheWidthOfTheTerminal) {
  EXPECT_LE(help_width(60), 80u);
  EXPECT_GT(help_width(200), 80u);
  EXPECT_LE(help_width(200), 100u);
}

TEST(Command, VersionNamesLibtorch) {
  const Outcome outcome = run_bellows({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, ::testing::MatchesRegex("bellows [0-9.]+, libtorch [0-9.]+.*\n"));
}

TEST(Command, WrongUseExitsWith2) {
  const Outcome none = run_bellows({});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("ladder"));
  const Outcome verb = run_bellows({"laddr"});
  EXPECT_EQ(verb.exit_code, 2);
  EXPECT_THAT(verb.err, HasSubstr("unknown command \"laddr\". Did you mean \"ladder\"?"));
  const Outcome flag = run_bellows({"train", "--recepie", "x.yaml"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.err, HasSubstr("--recepie"));
  EXPECT_THAT(flag.err, HasSubstr("bellows train --help"));
  EXPECT_EQ(run_forked({"ladder", "--data", digits(), "--target-accuracy", "97"}).exit_code, 2);
  EXPECT_EQ(run_forked({"ladder", "--data", digits(), "--target-accuracy", "much"}).exit_code, 2);
  for (const char* seconds : {"0", "-1", "nan", "inf"}) {
    EXPECT_EQ(run_forked({"ladder", "--data", digits(), "--max-seconds", seconds}).exit_code, 2) << seconds;
  }
  EXPECT_EQ(run_forked({"ladder", "--data", digits(), "--max-epochs", "0"}).exit_code, 2);
  EXPECT_EQ(run_forked({"ladder", "--data", digits(), "--html", "-"}).exit_code, 2);
  EXPECT_EQ(run_forked({"ladder", "--data", digits(), "--html", "x", "--json", "./x"}).exit_code, 2);
  EXPECT_EQ(run_forked({"ladder", "--list", "--json"}).exit_code, 2);
  EXPECT_EQ(run_forked({"ladder", "--list", "--html", "x"}).exit_code, 2);
  const Outcome resume = run_bellows({"train", "--data", digits(), "--resume"});
  EXPECT_EQ(resume.exit_code, 2);
  EXPECT_THAT(resume.err, HasSubstr("--out"));
  EXPECT_EQ(run_forked({"ladder"}).exit_code, 2);
  EXPECT_EQ(run_forked({"train"}).exit_code, 2);
}

TEST(Command, WrongOptionsAreExplained) {
  const auto problem = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_forked(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(problem({"--bogus"}), HasSubstr("unknown option --bogus."));
  EXPECT_THAT(problem({"train", "--recepie", "x.yaml"}),
              HasSubstr("unknown option --recepie. Did you mean \"--recipe\"?"));
  EXPECT_THAT(problem({"select", "--kep", "0.5", "--data", "a", "--by", "random", "--count", "1", "--out", "b"}),
              HasSubstr("unknown option --kep. Did you mean \"--keep\"?"));
  EXPECT_THAT(problem({"train", "--batch-size=3"}),
              HasSubstr("unknown option --batch-size. To set the recipe key batch_size, use --set batch_size=VALUE."));
  EXPECT_THAT(problem({"train", "r.yaml"}), HasSubstr("unexpected argument \"r.yaml\"."));
  EXPECT_THAT(problem({"train", "--out"}), HasSubstr("--out needs a value: --out DIR."));
  EXPECT_THAT(problem({"pack", "a"}), HasSubstr("DST is required."));
  EXPECT_THAT(problem({"launch", "-n", "many", "--", "true"}),
              HasSubstr("--ranks: expected an integer from 1 to 1000000, got many."));
  EXPECT_THAT(problem({"select", "--seed", "-1"}), HasSubstr("--seed: expected an integer of at least 0, got -1."));
  EXPECT_THAT(problem({"select", "--keep", "0.5", "--count", "3", "--data", "a", "--by", "random", "--out", "b"}),
              HasSubstr("set exactly one of --keep, --count and --add."));
  EXPECT_THAT(problem({"pack", "a", "b", "--shard-samples", "3", "--shard-size", "1MB"}),
              HasSubstr("--shard-size cannot be combined with --shard-samples."));
  EXPECT_THAT(problem({"checkpoint"}), HasSubstr("an action is missing. The actions are: info, export."));
  EXPECT_THAT(problem({"checkpoint", "inof"}), HasSubstr("unknown action \"inof\". Did you mean \"info\"?"));
}

TEST(Doctor, JsonIsCompleteAndTrue) {
  const Outcome outcome = run_bellows({"doctor", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_GE(json["machine"]["cores"].get<int>(), 1);
  EXPECT_GT(json["machine"]["memory_bytes"].get<int64_t>(), 1 << 20);
  EXPECT_THAT(json["libtorch"]["version"].get<std::string>(), HasSubstr("2."));
  EXPECT_TRUE(std::filesystem::exists(json["libtorch"]["path"].get<std::string>()));
  EXPECT_TRUE(json["features"].contains("amx_bf16"));
  for (const auto& finding : json["findings"]) {
    EXPECT_THAT(finding["health"].get<std::string>(), ::testing::AnyOf("ok", "note", "warning", "failure"));
    EXPECT_TRUE(finding["health"] != "warning" || finding["fix"] != "") << finding["what"];
  }
}

TEST(Doctor, SaysWhatToFix) {
  const Outcome forced = run_bellows({"doctor"}, {"ATEN_CPU_CAPABILITY=default", "GOMP_SPINCOUNT=1"});
  EXPECT_THAT(forced.out, HasSubstr("Unset ATEN_CPU_CAPABILITY"));
  EXPECT_THAT(forced.out, HasSubstr("1 per operator"));
  EXPECT_THAT(forced.out, HasSubstr("GOMP_SPINCOUNT=1\n"));
  EXPECT_THAT(forced.out, HasSubstr("to fix."));
}

TEST(Doctor, PlainTextWhenNotOnATerminal) {
  const Outcome outcome = run_bellows({"doctor"});
  expect_no_control_characters(outcome.out + outcome.err);
  expect_width(outcome.out, 80);
}

TEST(Doctor, ColoursOnATerminalOnly) {
  const auto on_terminal = [](std::vector<std::string> environment) {
    environment.push_back("TERM=xterm");
    return Process({.arguments = {"doctor"}, .environment = std::move(environment), .terminal = true}).finish().out;
  };
  EXPECT_THAT(on_terminal({"NO_COLOR="}), HasSubstr("\033[32m"));
  EXPECT_THAT(on_terminal({"NO_COLOR=1"}), Not(HasSubstr("\033[3")));
}

/// Exit code of the binary behind a shell, which can redirect.
int in_a_shell(const std::string& arguments) {
  const int status = std::system(("OMP_NUM_THREADS=1 " BELLOWS_BIN_DIR "/bellows " + arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Command, ResultsThatCannotBeWrittenAreAnError) {
  EXPECT_EQ(in_a_shell("doctor >/dev/full 2>/dev/null"), 1);
  EXPECT_EQ(in_a_shell("doctor --json >/dev/full 2>/dev/null"), 1);
  EXPECT_EQ(in_a_shell("ladder --list >&- 2>/dev/null"), 1);
  for (const char* verb :
       {"--help", "train --help", "--version", "train --keys", "ladder --list", "launch -n 1 -- echo x"})
    EXPECT_EQ(in_a_shell(std::string(verb) + " >/dev/full 2>/dev/null"), 1) << verb;
  EXPECT_EQ(in_a_shell("launch -n 1 -- sh -c 'exit 3' >/dev/full 2>/dev/null"), 3);
  EXPECT_EQ(in_a_shell("doctor --json /dev/null >/dev/null"), 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(Command, NamesTheReasonIfStandardOutputCannotBeWritten) {
  const auto full = [](std::vector<std::string> arguments) {
    return Process({.arguments = std::move(arguments), .prefix = {"sh", "-c", "exec \"$@\" >/dev/full", "sh"}})
        .finish();
  };
  constexpr const char* reason = "to standard output: No space left on device (28).\n";
  EXPECT_EQ(full({"--help"}).err, std::string("bellows: cannot write ") + reason);
  EXPECT_EQ(full({"doctor"}).err, std::string("bellows: cannot write ") + reason);
  EXPECT_THAT(full({"launch", "-n", "1", "--", "echo", "x"}).err,
              HasSubstr(std::string("cannot write the output of the ranks ") + reason));
}

TEST(Command, AReaderThatStopsEarlyIsNoError) {
  const Outcome outcome =
      Process({.arguments = {"train", "--keys"}, .prefix = {"sh", "-c", "\"$@\" | head -1", "sh"}}).finish();
  EXPECT_THAT(outcome.out, HasSubstr("model"));
  EXPECT_EQ(outcome.err, "");
}

TEST(Command, WhatWasTypedWrongIsWrongUse) {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--set", "device=gpu"},
                                                {"--set", "device=cpu:7"},
                                                {"--model", "resnet5"},
                                                {"--set", "warmup_epochs=5", "--set", "epochs=1"},
                                                {"--set", "recompute=blocks", "--model", "mlp"},
                                                {"--set", "batch_size=9223372036854775807"},
                                                {"--recipe", "/dev/null"}}) {
    std::vector<std::string> arguments = {"train", "--data", "data/digits"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Outcome outcome = run_forked(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << wrong[1] << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("recipe: recipe"))) << wrong[1];
  }
  for (const char* share : {"nan", "0", "97", "-1"}) {
    EXPECT_EQ(run_forked({"ladder", "--data", "data/digits", "--target-accuracy", share}).exit_code, 2) << share;
  }
}

// A new technique changes the page: bellows ladder --list > docs/techniques.md
TEST(Ladder, ListIsTheReferencePage) {
  const Outcome outcome = run_bellows({"ladder", "--list"});
  EXPECT_EQ(outcome.exit_code, 0);
  std::ifstream file(BELLOWS_SOURCE_DIR "/docs/techniques.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(page, HasSubstr("## channels-last (`channels_last`)"));
  EXPECT_EQ(outcome.out, page);
}

}  // namespace bellows::cli
