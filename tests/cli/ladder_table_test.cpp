#include "cli/tables/ladder_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tables/comparison_table.h"
#include "tests/cli/output_width.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;
using train::Effect;
using train::LadderGoal;
using train::RungResult;
using train::Verdict;

RungResult a_rung() {
  RungResult rung;
  rung.technique = "bf16_autocast";
  rung.title = "bf16 weights (O2)";  // as wide as the column
  rung.verdict = Verdict::kept;
  rung.step_ms = 1234.56;
  rung.samples_per_s = 123456;
  rung.peak_bytes = int64_t{9999} << 20;
  rung.time_to_target_s = 1234.56;
  rung.time_to_target_range = {.low = 1000, .high = 2000};
  rung.accuracy = 1;
  rung.speedup = {.ratio = 12.34, .low = 11.11, .high = 13.57};
  rung.samples_per_s_over_start = {.ratio = 52.34, .low = 41.11, .high = 63.57};
  rung.target_over_start = rung.memory_ratio = rung.memory_over_start = 12.34;
  rung.expected_speed = rung.measured_speed = Effect::costs;
  rung.expected_memory = Effect::helps;
  rung.measured_memory = Effect::none;
  rung.curves.resize(3);
  rung.shares = {.load_ms = 100, .forward_ms = 400, .backward_ms = 600, .optimizer_ms = 100, .other_ms = 34};
  return rung;
}

void expect_to_fit(const std::string& text) {
  expect_narrow(text, 79);
}

}  // namespace

TEST(LadderTable, FitsEightyColumnsWhateverItHolds) {
  const Terminal terminal;
  RungResult rung = a_rung();
  expect_to_fit(ladder_head(LadderGoal::speed));
  expect_to_fit(ladder_head(LadderGoal::memory));
  for (const Verdict verdict :
       {Verdict::kept, Verdict::no_effect, Verdict::slower, Verdict::more_memory, Verdict::misses_target,
        Verdict::later_at_target, Verdict::does_not_apply, Verdict::failed}) {
    rung.verdict = verdict;
    rung.note = "a reason that is longer than any line of a terminal that has eighty columns, and goes on and on";
    expect_to_fit(ladder_row(terminal, rung, LadderGoal::speed));
    expect_to_fit(ladder_row(terminal, rung, LadderGoal::memory));
  }
  train::LadderReport report;
  report.plain = report.rungs.emplace_back(a_rung());
  report.plain.technique = "plain";
  expect_to_fit(ladder_foot(terminal, report));
}

TEST(LadderTable, InferenceShowsSizesAndAccuracies) {
  const Terminal terminal;
  RungResult rung = a_rung();
  rung.model_bytes = int64_t{9999} << 20;
  rung.output_difference = 0.123456;
  for (const double accuracy : {1.0, 0.98765}) {
    rung.accuracy = accuracy;
    for (const Verdict verdict : {Verdict::kept, Verdict::less_accurate, Verdict::no_effect}) {
      rung.verdict = verdict;
      rung.note = "a reason that is longer than any line of a terminal that has eighty columns, and is longer still";
      expect_to_fit(ladder_row(terminal, rung, LadderGoal::inference));
    }
  }
  EXPECT_THAT(ladder_row(terminal, rung, LadderGoal::inference), HasSubstr("  9999 98.77 "));
  EXPECT_THAT(ladder_head(LadderGoal::inference), HasSubstr("size"));
  expect_to_fit(ladder_head(LadderGoal::inference));
  train::LadderReport report;
  report.options.goal = LadderGoal::inference;
  rung.verdict = Verdict::kept;
  report.plain = report.rungs.emplace_back(rung);
  report.plain.technique = "plain";
  report.plain.title = "eager";
  const std::string foot = ladder_foot(terminal, report);
  expect_to_fit(foot);
  EXPECT_THAT(foot, HasSubstr("Compared with eager"));
  EXPECT_THAT(foot, HasSubstr("98.77 % → 98.77 %"));
  EXPECT_THAT(foot, HasSubstr("12 %"));
  EXPECT_THAT(foot, ::testing::Not(HasSubstr("plain libtorch")));
  EXPECT_THAT(foot, ::testing::Not(HasSubstr("Time to")));
}

TEST(LadderTable, TheRungInProgressShowsWhatIsKnown) {
  RungResult rung = a_rung();
  rung.step_ms = 12.5;
  const std::string line = ladder_live_line(
      {.rung = &rung, .activity = "target 2/3", .done = 1, .total = 30, .run_seconds = 4.2, .run_accuracy = 0.913},
      LadderGoal::speed);
  EXPECT_THAT(line, HasSubstr("12.5 "));
  EXPECT_THAT(line, HasSubstr("4.2…"));
  EXPECT_THAT(line, HasSubstr("91.3"));
  EXPECT_THAT(line, HasSubstr("target 2/3"));
  expect_to_fit(line);
  const RungResult nothing{.technique = "x", .title = "x"};
  EXPECT_THAT(ladder_live_line({.rung = &nothing, .activity = "warm-up"}, LadderGoal::speed), HasSubstr("- "));
}

TEST(LadderTable, ALongTitleTakesSeveralLines) {
  const Terminal terminal;
  RungResult rung = a_rung();
  rung.title = "selective activation checkpointing";
  rung.step_ms = 12.5;
  const std::string row = ladder_row(terminal, rung, LadderGoal::speed);
  EXPECT_THAT(row, ::testing::StartsWith("selective\nactivation\ncheckpointing      12.5 "));
  expect_to_fit(row);
  const std::string line = ladder_live_line({.rung = &rung, .activity = "warm-up"}, LadderGoal::speed);
  EXPECT_THAT(line, ::testing::StartsWith("selective…         12.5 "));
  expect_to_fit(line);
  train::LadderReport report;
  report.rungs = {rung};
  EXPECT_THAT(ladder_foot(terminal, report), HasSubstr("\nselective\nactivation\ncheckpointing     52.3×"));
  expect_to_fit(ladder_foot(terminal, report));
}

TEST(LadderTable, TheFootSetsExpectedBesideMeasured) {
  const Terminal terminal;
  train::LadderReport report;
  report.rungs = {a_rung()};
  report.plain.title = "plain libtorch";
  report.plain.time_to_target_s = 10;
  report.plain.shares = {.load_ms = 1.5, .forward_ms = 10, .backward_ms = 20, .optimizer_ms = 2, .other_ms = 0.5};
  report.speedup = {.ratio = 2.9, .low = 2.5, .high = 3.3};
  const std::string foot = ladder_foot(terminal, report);
  EXPECT_THAT(foot, HasSubstr("52.3× (41.1-63.6)     12.3×   12.3×  costs costs    yes    no"));
  EXPECT_THAT(foot, HasSubstr("2.90× faster (90 % interval 2.50 to 3.30)"));
  EXPECT_THAT(foot, HasSubstr("1234.56 s (1000.00\nto 2000.00)"));
  EXPECT_THAT(foot, HasSubstr("load 1.5, forward 10.0, backward 20.0,\noptimizer 2.0, other 0.5."));
  report.rungs.push_back({.technique = "a", .title = "a rung"});
  report.rungs.push_back({.technique = "b", .title = "another"});
  report.failure = "a run ended early.";
  EXPECT_THAT(ladder_foot(terminal, report), HasSubstr("Not measured because of the time limit: a rung, another.\n"));
  EXPECT_THAT(ladder_foot(terminal, report), HasSubstr("The last comparison failed: a run ended early."));
  report.interrupted = true;
  EXPECT_THAT(ladder_foot(terminal, report), HasSubstr("Only the results so far are shown"));
}

TEST(LadderTable, RungsAboutLoadingSayWhereTheLoadersTimeGoes) {
  const Terminal terminal;
  RungResult rung = a_rung();
  rung.bottleneck =
      "The loader is the bottleneck (next() waited 62 % of the time): a sentence that is longer than a "
      "line of a terminal with eighty columns.";
  EXPECT_THAT(ladder_row(terminal, rung, LadderGoal::speed), ::testing::Not(HasSubstr("next() waited")));
  rung.is_about_loading = true;
  EXPECT_THAT(ladder_row(terminal, rung, LadderGoal::speed), HasSubstr("next() waited 62 %"));
  expect_to_fit(ladder_row(terminal, rung, LadderGoal::speed));
}

TEST(ComparisonTable, CutsLongWordsOfTitles) {
  RungResult rung = a_rung();
  rung.title = "first a_very_long_récipe_name";
  const std::string row = comparison_row(Terminal(), rung);
  EXPECT_THAT(row, ::testing::StartsWith("first\na_very_long_ré…"));
  expect_to_fit(row);
  expect_to_fit(comparison_live_line({.rung = &rung, .activity = "warm-up"}));
}

TEST(ComparisonTable, TheFootSaysWhetherAConfigurationWasMeasured) {
  train::LadderReport report;
  report.options.goal = LadderGoal::comparison;
  report.plain.title = "the recipe";
  report.rungs = {a_rung()};
  report.rungs[0].verdict = Verdict::failed;
  EXPECT_THAT(comparison_foot(Terminal(), report), HasSubstr("No configuration was measured."));
  report.rungs[0].verdict = Verdict::slower;
  EXPECT_THAT(comparison_foot(Terminal(), report), HasSubstr("Nothing was faster than the recipe."));
}

TEST(LadderTable, AnIntervalHasTwoEnds) {
  const Terminal terminal;
  RungResult rung = a_rung();
  rung.speedup = {.ratio = 1.23, .low = 1.2, .high = 1.4};
  EXPECT_THAT(ladder_row(terminal, rung, LadderGoal::speed), HasSubstr(" 1.23× (1.20-1.40) kept"));
  rung.judged_by_target = true;
  EXPECT_THAT(ladder_row(terminal, rung, LadderGoal::speed), HasSubstr(" 1.23×*(1.20-1.40) kept"));
}

TEST(LadderTable, NothingKeptIsNoFactor) {
  const Terminal terminal;
  train::LadderReport report;
  report.rungs.push_back(a_rung());
  report.rungs[0].verdict = Verdict::no_effect;
  const std::string foot = ladder_foot(terminal, report);
  EXPECT_THAT(foot, HasSubstr("No technique was kept."));
  EXPECT_THAT(foot, ::testing::Not(HasSubstr("faster (")));
}

}  // namespace bellows::cli
