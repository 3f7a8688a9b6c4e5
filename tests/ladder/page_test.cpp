#include "bellows/ladder/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "bellows/core/error.h"
#include "bellows/ladder/chart.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/memory_target.h"
#include "bellows/ladder/process.h"
#include "tests/ladder/ladder_world.h"
#include "tests/support/html.h"

namespace bellows::train {

using testing::HasSubstr;
using testing::Not;

namespace {

int64_t count_of(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), expression), std::sregex_iterator());
}

LadderReport a_report() {
  LadderWorld world;
  world.ms_per_sample = [](const Recipe* recipe) {
    return recipe ? (recipe->channels_last ? 0.5 : 1.0) * (is_bf16(recipe) ? 2 : 1) : 1.0;
  };
  Technique absent = rung_that("absent", [](Recipe&) {});
  absent.obstacle = [](const Recipe&, const Machine&) { return std::string("no such arithmetic here"); };
  return climb(world, {sets_channels_last(), sets_bf16(), absent});
}

}  // namespace

TEST(LadderPage, SaysOfRungsAboutLoadingWhereTheLoadersTimeGoes) {
  LadderReport report = a_report();
  EXPECT_EQ(report.rungs[0].bottleneck, "reads wait for <the disk>");
  EXPECT_THAT(ladder_page(report), Not(HasSubstr("reads wait")));
  EXPECT_THAT(to_json(report), HasSubstr("\"loader_bottleneck\": \"reads wait for <the disk>\""));
  report.rungs[0].is_about_loading = true;
  EXPECT_THAT(ladder_page(report), HasSubstr("reads wait for &lt;the disk&gt;"));
  expect_well_formed(ladder_page(report));
}

TEST(LadderPage, ShowsEveryRungAndNeedsNothingElse) {
  const std::string page = ladder_page(a_report());
  expect_well_formed(page);
  EXPECT_EQ(count_of(page, "<svg "), 4);
  EXPECT_EQ(count_of(page, "<tr[ >]"), 5 + 5) << "head, plain, three rungs; a head of two, three rungs";
  for (const char* text : {"channels_last", "bf16", "no such arithmetic here", "prefers-color-scheme: dark", "viewport",
                           "<strong>2.00×</strong> faster to 97\u00a0% accuracy", "Expected and measured"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_EQ(count_of(page, "<svg [^>]*role=\"img\" aria-labelledby=\"[a-z]+-title [a-z]+-desc\""), 4);
  EXPECT_EQ(count_of(page, "https?:|<script|<link|<img|@import|\\ssrc="), 0) << "one self-contained page";
  EXPECT_EQ(count_of(page, "[^a-z_](nan|inf)[^a-z]"), 0) << "what was not measured is a dash";
}

TEST(LadderPage, WhatANameHoldsIsText) {
  LadderReport report = a_report();
  report.model = "<script>alert(1)</script>";
  report.data = "a & \"b\"";
  report.rungs[0].title = "</svg><b>";
  const std::string page = ladder_page(report);
  expect_well_formed(page);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("a &amp; &quot;b&quot;"));
}

TEST(LadderPage, AnInterruptedLadderIsAPageToo) {
  LadderWorld world;
  bool stop = false;
  const LadderReport report = climb(
      world, {sets_channels_last()}, {}, [&] { return stop; },
      [&](const LadderEvent& event) { stop |= event.finished; });
  ASSERT_TRUE(report.interrupted);
  const std::string page = ladder_page(report);
  expect_well_formed(page);
  EXPECT_THAT(page, HasSubstr("stopped before the end"));
  EXPECT_EQ(count_of(ladder_page(LadderReport{}), "<svg "), 0) << "no axes without data";
  EXPECT_EQ(count_of(ladder_page(LadderReport{}), "[^a-z_](nan|inf)[^a-z]"), 0) << "nothing was measured at all";
}

TEST(LadderPage, NothingKeptAndFailuresAreSaid) {
  LadderWorld world;
  world.noise = 0;
  LadderReport report = climb(world, {sets_channels_last()});
  report.failure = "a run ended <early>";
  const std::string page = ladder_page(report);
  EXPECT_THAT(page, HasSubstr("<h1>No technique was kept</h1>"));
  EXPECT_THAT(page, HasSubstr("a run ended &lt;early&gt;"));
  EXPECT_THAT(page, HasSubstr("class=\"mark bottom faint\"")) << "plain ran once";
}

TEST(LadderPage, MemoryHasItsOwnHeadline) {
  LadderWorld world;
  world.bytes = [](const Recipe* recipe) { return is_bf16(recipe) ? int64_t{5 << 20} : int64_t{10 << 20}; };
  const std::string page = ladder_page(climb(world, {sets_bf16()}, {.goal = LadderGoal::memory}));
  EXPECT_THAT(page, HasSubstr("<strong>2.00×</strong> less memory"));
  EXPECT_LT(page.find("<h2>Peak memory"), page.find("<h2>Time to")) << "what it is about comes first";
}

TEST(LadderPage, AMemoryTargetShowsWhatWasMeasuredAndChosen) {
  MemoryTargetReport report{.model = "a <model>", .data = "data"};
  report.target.bytes = 3 << 20;
  report.rungs.push_back(
      {.candidate = {.changes = "nothing"}, .verdict = TargetVerdict::too_large, .peak_bytes = 5 << 20, .step_ms = 10});
  report.rungs.push_back({.candidate = {.changes = "gradient accumulation over 4 steps, 8-bit optimizer state",
                                        .techniques = {"int8_state"}},
                          .verdict = TargetVerdict::chosen,
                          .peak_bytes = 2 << 20,
                          .step_ms = 12,
                          .time_over_start = {.ratio = 1.2, .low = 1.1, .high = 1.3}});
  report.recipe_yaml = "optimizer_state: int8\n";
  const std::string page = ladder_page(report);
  expect_well_formed(page.substr(page.find("<body>"), page.find("</html>") - page.find("<body>")));
  for (const char* words :
       {"<strong>2.0 MiB</strong> of 3.0 MiB", "a &lt;model&gt;",
        "1. gradient accumulation over 4 steps, 8-bit optimizer state", "1.20× slower than the unchanged recipe",
        "moments are accurate to about 1 %", "Set target_accuracy", "optimizer_state: int8"}) {
    EXPECT_THAT(page, HasSubstr(words));
  }
  EXPECT_EQ(count_of(page, "class=\"mark top\""), 2) << "in memory and in time";
  report.rungs.pop_back();
  EXPECT_THAT(ladder_page(report), HasSubstr("No recipe fits into 3.0 MiB"));
}

TEST(LadderChart, BarsAreToScale) {
  const std::string chart = bar_chart({.id = "t", .title = "T", .description = "D"}, "s",
                                      {{.label = "a", .shown = "10", .value = 10},
                                       {.label = "b", .shown = "5", .value = 5},
                                       {.label = "c", .shown = "–", .value = std::nan("")}});
  std::vector<double> widths;
  const std::regex width("class=\"mark [a-z]+\"[^>]* width=\"([0-9.]+)\"");
  for (auto it = std::sregex_iterator(chart.begin(), chart.end(), width); it != std::sregex_iterator(); ++it) {
    widths.push_back(std::stod((*it)[1]));
  }
  ASSERT_EQ(widths.size(), 2u) << "no bar without a value";
  EXPECT_NEAR(widths[0], 2 * widths[1], 0.2);
}

TEST(LadderChart, LongLabelsTakeTwoLines) {
  const std::string chart =
      bar_chart({.id = "t", .title = "T", .description = "D"}, "s",
                {{.label = "optimizer in backward", .shown = "3", .value = 3},
                 {.label = "selective activation checkpointing", .shown = "10", .value = 10},
                 {.label = "1. gradient accumulation over 4 steps, offload to disk", .shown = "5", .value = 5}});
  for (const char* line : {">optimizer in backward<", ">selective activation<", ">checkpointing<", ">1. gradient<",
                           ">accumulation over 4 …<"}) {
    EXPECT_THAT(chart, HasSubstr(line));
  }
}

namespace {

class JobThatSaysWhereItLives final : public LadderJob {
 public:
  int64_t run_steps(int64_t n) override {
    TORCH_CHECK_VALUE(n != 13, "thirteen steps are not allowed.");
    if (n == 66) _exit(9);
    return n * 32;
  }
  int64_t steps_per_epoch() const override { return getpid(); }
  int64_t samples_per_epoch() const override { return 1000; }
  double evaluate() override { return 0.25; }
  int64_t take_peak_bytes() override { return 77; }
  StepShares phases() override { return {.load_ms = 1, .forward_ms = 2, .backward_ms = 3, .optimizer_ms = 4}; }
  std::string bottleneck() override { return "decode"; }
};

}  // namespace

TEST(LadderProcess, AJobInAChildAnswersAsItWouldHere) {
  const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  const auto job = in_own_process([] { return std::make_unique<JobThatSaysWhereItLives>(); });
  EXPECT_EQ(job->steps_per_epoch() != getpid(), threads == 1) << threads << " threads";
  EXPECT_EQ(job->run_steps(3), 96);
  EXPECT_EQ(job->samples_per_epoch(), 1000);
  EXPECT_EQ(job->evaluate(), 0.25);
  EXPECT_EQ(job->take_peak_bytes(), 77);
  EXPECT_EQ(job->phases().total_ms(), 10);
  EXPECT_EQ(job->bottleneck(), "decode");
  try {
    job->run_steps(13);
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(user_message(error), "thirteen steps are not allowed.");
  }
  EXPECT_EQ(job->run_steps(1), 32) << "it lives on";
  if (threads > 1) return;
  try {
    job->run_steps(66);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(user_message(error), HasSubstr("ended unexpectedly"));
  }
}

TEST(LadderProcess, WhatCannotBeMadeIsSaid) {
  const auto make = []() -> std::unique_ptr<LadderJob> { TORCH_CHECK_VALUE(false, "there are no data."); };
  EXPECT_THROW(in_own_process(make), c10::ValueError);
}

}  // namespace bellows::train
