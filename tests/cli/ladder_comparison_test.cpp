// `bellows ladder --ranks` and `bellows ladder --compare`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "forked.h"
#include "process.h"
#include "tests/cli/output_width.h"

namespace bellows::cli {

namespace {

using ComparisonJson = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

ComparisonJson comparison_in(const std::string& path) {
  std::ifstream file(path);
  return ComparisonJson::parse(file);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

const std::string family = BELLOWS_SOURCE_DIR "/examples/08_fork/";

}  // namespace

TEST(LadderComparison, ComparesStrategiesWithOneProcess) {
  const Scratch folder;
  const Outcome outcome = run_bellows(
      {"ladder", "--ranks", "2", "--data", digits(), "--model", "mlp", "--quick", "--target-accuracy", "0.8", "--json",
       folder / "l.json", "--html", folder / "l.html", "--write-recipe", folder / "r.yaml"},
      {"OMP_NUM_THREADS=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  expect_narrow(outcome.out, 79);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("bellows ladder --ranks 2: mlp on "), HasSubstr("one process, which has 2 threads"),
                    HasSubstr("ZeRO-3"), HasSubstr("replicas")));
  const ComparisonJson json = comparison_in(folder / "l.json");
  EXPECT_EQ(json["goal"], "comparison");
  ASSERT_EQ(json["rungs"].size(), 10u);
  for (const ComparisonJson& rung : json["rungs"]) {
    const std::set<std::string> divided = {"tensor", "context", "pipeline"};
    if (divided.count(rung["technique"]) > 0) {
      EXPECT_EQ(rung["verdict"], "does not apply") << rung;  // nothing divides the layers of this model
      continue;
    }
    const bool in_one = rung["technique"] == "replicas";
    EXPECT_EQ(rung["ranks"], in_one ? 1 : 2) << rung;
    EXPECT_EQ(rung["threads_per_rank"], in_one ? 2 : 1) << rung;
    EXPECT_GT(rung["sent_bytes_per_step"].get<double>(), 0) << rung;
    EXPECT_GT(rung["peak_bytes"].get<int64_t>(), 0) << rung;
    EXPECT_GT(rung["speedup"].get<double>(), 0) << rung;
    EXPECT_EQ(rung["batch_size"], json["baseline"]["batch_size"]) << "the batch of all ranks together";
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "l.html"));
  EXPECT_TRUE(std::filesystem::exists(folder / "r.yaml"));
}

TEST(LadderComparison, ComparesTheRecipesOfTheFork) {
  const Scratch folder;
  const Outcome outcome =
      run_bellows({"ladder", "--recipe", family + "amp.yaml", "--data", digits(), "--model", "mlp", "--set", "lr=0.05",
                   "--compare", family + "compile.yaml", family + "ddp.yaml:2", family + "compile_ddp.yaml:2",
                   "--quick", "--target-accuracy", "0.8", "--json", folder / "l.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  expect_narrow(outcome.out, 79);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("There are more ranks (2) than threads (1)"), HasSubstr("ddp, 2 ranks")));
  const ComparisonJson json = comparison_in(folder / "l.json");
  ASSERT_EQ(json["rungs"].size(), 3u);
  const std::vector<std::string> names = {"compile", "ddp", "compile_ddp"};
  for (size_t i = 0; i < names.size(); ++i) {
    const ComparisonJson& rung = json["rungs"][i];
    EXPECT_EQ(rung["technique"], names[i]);
    EXPECT_EQ(rung["ranks"], i == 0 ? 1 : 2);
    EXPECT_GE(rung["accuracy"].get<double>(), 0.8) << rung;
    EXPECT_NE(rung["verdict"], "failed") << rung;
  }
}

TEST(LadderComparison, OptionsMustFitTogether) {
  const Scratch folder;
  write_text(folder / "a.yaml", "compile: step\n");
  write_text(folder / "bad.yaml", "compil: step\n");
  const auto message = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"ladder", "--data", digits(), "--quick"});
    const Outcome outcome = run_forked(options);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(message({"--ranks", "2", "--compare", folder / "a.yaml"}), HasSubstr("--ranks cannot be combined with"));
  EXPECT_THAT(message({"--ranks", "0"}), HasSubstr("an integer from 1 to 1024"));
  EXPECT_THAT(message({"--ranks", "2", "--memory"}), HasSubstr("--memory cannot be combined with --ranks"));
  EXPECT_THAT(message({"--compare", folder / "a.yaml:x"}), HasSubstr("expected FILE or FILE:RANKS"));
  EXPECT_THAT(message({"--compare", folder / "none.yaml:2"}), HasSubstr("none.yaml"));
  EXPECT_THAT(message({"--compare", folder / "bad.yaml"}), HasSubstr("compile"));
  EXPECT_THAT(message({"--compare", folder / "a.yaml:2", folder / "a.yaml:2"}),
              HasSubstr("both recipes have the name \"a:2\""));
}

TEST(LadderComparison, ListsTheTechniquesForRanks) {
  const Outcome outcome = run_bellows({"ladder", "--ranks", "2", "--list"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("# Techniques for several ranks"), HasSubstr("(`reproducible_ranks`)")));
}

TEST(LadderComparison, CtrlCEndsTheRanks) {
  const Scratch folder;
  Process process({.arguments = {"ladder", "--ranks", "2", "--data", digits(), "--model", "mlp", "--target-accuracy",
                                 "0.8", "--json", folder / "l.json"}});
  ASSERT_TRUE(
      process.wait_until([](const Outcome& so_far) { return so_far.out.find("one process  ") != std::string::npos; }));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_TRUE(comparison_in(folder / "l.json")["interrupted"].get<bool>());
}

}  // namespace bellows::cli
