#include "bellows/tune/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "functions.h"
#include "tests/support/temporary_folder.h"

namespace bellows::tune {

namespace {

using ::testing::HasSubstr;
using Metrics = std::map<std::string, double>;

class StudyTest : public ::testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

StudyOptions mixed_study(const std::string& sampler = "tpe") {
  return {.space = mixed_space(), .objective = "loss", .maximize = false, .sampler = sampler, .seed = 4};
}

Metrics mixed_loss(const Assignment& values) {
  return {{"loss", mixed(values)}};
}

std::string failure_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return user_message(error);
  }
  return "";
}

/// Configurations of finished trials.
std::vector<Assignment> finished_values(const Study& study) {
  std::vector<Assignment> result;
  for (const Trial& trial : study.trials()) {
    if (trial.finished()) result.push_back(trial.values);
  }
  return result;
}

}  // namespace

TEST_F(StudyTest, TriesEachConfigurationOnce) {
  for (const char* sampler : {"tpe", "random", "grid"}) {
    StudyOptions options{.space = {{integer("a", 0, 3), choice("b", {"x", "y", "z", "w"})}},
                         .objective = "loss",
                         .maximize = false,
                         .sampler = sampler};
    Study study(options, "", false);
    run_trials(study, 100, [](const Assignment& values) { return Metrics{{"loss", values[0] + values[1]}}; });
    EXPECT_EQ(study.finished(), 16) << sampler;
    const std::vector<Assignment> values = finished_values(study);
    EXPECT_EQ(std::set<Assignment>(values.begin(), values.end()).size(), 16u) << sampler;
    EXPECT_EQ(best_trial(study.trials())->objective, 0);
  }
}

// A resumed search proposes the configurations of an uninterrupted one.
TEST_F(StudyTest, ResumesWithTheSameConfigurations) {
  Study whole(mixed_study(), "", false);
  run_trials(whole, 30, mixed_loss);
  for (int part = 0; part < 3; ++part) {
    Study study(mixed_study(), folder_, part > 0);
    EXPECT_EQ(study.finished(), 10 * part);
    run_trials(study, 10, mixed_loss);
  }
  const Study resumed(mixed_study(), folder_, true);
  EXPECT_EQ(finished_values(resumed), finished_values(whole));
  EXPECT_EQ(best_trial(resumed.trials())->objective, best_trial(whole.trials())->objective);
}

// Twenty processes are killed between operations. No finished trial is lost or repeated.
TEST_F(StudyTest, TwentyKillsLoseNoTrial) {
  std::vector<Assignment> before;
  for (int kills = 0; kills < 20; ++kills) {
    const pid_t child = fork();
    if (child == 0) {
      Study study(mixed_study(), folder_, true);
      for (int64_t operations = 0;; ++operations) {
        const auto trial = study.ask();
        if (operations == 1 + kills % 3) raise(SIGKILL);
        study.report(trial->number, {1, 0.5});
        if (operations == 3) raise(SIGKILL);
        study.tell(trial->number, {.metrics = mixed_loss(trial->values)});
      }
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const Study study(mixed_study(), folder_, true);
    const std::vector<Assignment> now = finished_values(study);
    ASSERT_EQ(now.size(), before.size() + static_cast<size_t>(1 + kills % 3));
    EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin()));
    EXPECT_EQ(std::set<Assignment>(now.begin(), now.end()).size(), now.size());
    before = now;
  }
}

TEST_F(StudyTest, RunsInterruptedConfigurationsAgain) {
  Assignment interrupted;
  {
    Study study(mixed_study(), folder_, false);
    run_trials(study, 3, mixed_loss);
    interrupted = study.ask()->values;
  }
  Study study(mixed_study(), folder_, true);
  EXPECT_EQ(study.trials()[3].state, TrialState::interrupted);
  const auto again = study.ask();
  EXPECT_EQ(again->values, interrupted);
  EXPECT_EQ(again->number, 4);
  study.tell(4, {.metrics = mixed_loss(interrupted)});
  EXPECT_NE(study.ask()->values, interrupted);
}

TEST_F(StudyTest, RejectsFoldersThatItCannotUse) {
  {
    Study study(mixed_study(), folder_, false);
    run_trials(study, 2, mixed_loss);
    EXPECT_THAT(failure_of([&] { Study(mixed_study(), folder_, true); }), HasSubstr("another run"));
  }
  EXPECT_THAT(failure_of([&] { Study(mixed_study(), folder_, false); }),
              HasSubstr("already contains a search with 2 trials."));
  EXPECT_THAT(failure_of([&] { Study(mixed_study("random"), folder_, true); }), HasSubstr("differs in its sampler"));
  StudyOptions other = mixed_study();
  other.space.parameters[1].high = 13;
  EXPECT_THAT(failure_of([&] { Study(other, folder_, true); }), HasSubstr("differs in its space"));
  StudyOptions constrained = mixed_study();
  constrained.constraints = {{.metric = "accuracy", .at_least = 0.5}};
  EXPECT_THAT(failure_of([&] { Study(constrained, folder_, true); }), HasSubstr("differs in its constraints"));
  const std::string path = folder_ + "/trials.jsonl", text = read_text_file(path);
  std::ofstream(path) << text.substr(0, text.find('\n') + 1) << text.substr(text.find("\n", text.find('\n') + 1) + 1);
  EXPECT_THAT(failure_of([&] { Study(mixed_study(), folder_, true); }), HasSubstr("line 2: the entry is invalid"));
}

TEST_F(StudyTest, RejectsUnusableOptions) {
  EXPECT_THAT(failure_of([] { Study(mixed_study("tpee"), "", false); }), HasSubstr("Did you mean \"tpe\"?"));
  StudyOptions contradictory = mixed_study();
  contradictory.constraints = {{.metric = "accuracy", .at_least = 0.9, .at_most = 0.8}};
  EXPECT_THAT(failure_of([&] { Study(contradictory, "", false); }),
              HasSubstr("the constraint of accuracy cannot be satisfied"));
  StudyOptions large{.space = {{integer("a", 0, 1e9)}}, .sampler = "grid"};
  EXPECT_THAT(failure_of([&] { Study(large, "", false); }), HasSubstr("the grid has 1000000001 configurations"));
}

TEST_F(StudyTest, FailedTrialsAreExcluded) {
  Study study(mixed_study(), "", false);
  study.tell(study.ask()->number, {.metrics = {{"loss", NAN}}});
  study.tell(study.ask()->number, {.metrics = {{"accuracy", 1}}});
  study.tell(study.ask()->number, {.failure = "out of memory"});
  EXPECT_EQ(study.finished(), 3);
  EXPECT_EQ(best_trial(study.trials()), nullptr);
  for (const Trial& trial : study.trials()) EXPECT_EQ(trial.state, TrialState::failed);
  EXPECT_EQ(study.trials()[1].failure, "the trial did not report loss");
}

// The best feasible value of 3 is at the border of the constraint. Optuna's constrained TPE has the same purpose.
TEST_F(StudyTest, ConstraintsSteerTheSearch) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    StudyOptions options = mixed_study();
    options.seed = seed;
    options.constraints = {{.metric = "accuracy", .at_least = 0.9}};
    Study study(options, "", false);
    // Only a sixth of the space is feasible: small rates, which are not the best ones.
    run_trials(study, 80, [](const Assignment& values) {
      return Metrics{{"loss", mixed(values)}, {"accuracy", 0.9 - 0.1 * (std::log10(values[0]) + 4.2)}};
    });
    const Trial* best = best_trial(study.trials());
    ASSERT_TRUE(best);
    EXPECT_GE(best->metrics.at("accuracy"), 0.9);
    const auto violating = std::count_if(study.trials().begin(), study.trials().end(),
                                         [](const Trial& trial) { return trial.violation > 0; });
    EXPECT_LT(violating, 40) << seed;
  }
}

// A third of the trials of a full grid. The accuracy has one optimum, and rates and sizes depend on each other.
TEST_F(StudyTest, ComesCloseToAFullGridInAThirdOfItsTrials) {
  const auto accuracy = [](const Assignment& v) {
    const double rate = v[0] - 0.5 * v[1];
    return Metrics{{"accuracy", 0.97 - 0.05 * (rate - 1) * (rate - 1) - 0.03 * std::abs(v[1] - 2) - 0.1 * (v[2] == 3)}};
  };
  const std::vector<std::string> four = {"a", "b", "c", "d"};
  StudyOptions options{.space = {{choice("lr", four), choice("size", four), choice("momentum", four)}},
                       .sampler = "grid"};
  Study grid(options, "", false);
  run_trials(grid, 64, accuracy);
  const double best = -best_trial(grid.trials())->objective;
  options.sampler = "tpe";
  int64_t close = 0;
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    Study study(options, "", false);
    run_trials(study, 21, accuracy);
    close += -best_trial(study.trials())->objective >= 0.95 * best;
  }
  EXPECT_GE(close, 2);
}

TEST_F(StudyTest, PrunesAndRemembersReports) {
  StudyOptions options = mixed_study("random");
  options.halving = HalvingOptions{.first_rung = 1, .factor = 2};
  {
    Study study(options, folder_, false);
    for (int i = 0; i < 2; ++i) study.ask();
    EXPECT_FALSE(study.report(0, {1, 0.5}));
    EXPECT_FALSE(study.report(0, {1, 9.5}));  // the same step again
    EXPECT_TRUE(study.report(1, {1, 0.7}));
    study.tell(1, {.pruned = true});
    study.tell(0, {.metrics = {{"loss", 0.4}}});
  }
  const Study study(options, folder_, true);
  EXPECT_EQ(study.trials()[1].state, TrialState::pruned);
  const TrialReport& report = study.trials()[1].reports.front();
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.value, 0.7);
  EXPECT_TRUE(std::isnan(report.spent));
  EXPECT_EQ(study.trials()[0].metrics.at("loss"), 0.4);
}

// Time to the target: trial 0 needs 5 s. A trial that has used 5 s cannot become the best one.
TEST_F(StudyTest, PrunesTrialsThatUsedMoreThanTheBest) {
  StudyOptions options = mixed_study("random");
  options.objective = "time_to_target";
  options.constraints = {{.metric = "accuracy", .at_least = 0.9}};
  options.halving = HalvingOptions{.first_rung = 100};
  {
    Study study(options, folder_, false);
    for (int i = 0; i < 4; ++i) study.ask();
    EXPECT_FALSE(study.report(3, {1, -0.7, 8})) << "no trial has reached the target";
    study.tell(0, {.metrics = {{"accuracy", 0.8}, {"time_to_target", 1}}});
    EXPECT_FALSE(study.report(1, {1, -0.5, 2})) << "trial 0 has not reached the target";
    study.tell(2, {.metrics = {{"accuracy", 0.9}, {"time_to_target", 5}}});
    EXPECT_FALSE(study.report(1, {2, -0.7, 4.9}));
  }
  Study study(options, folder_, true);
  EXPECT_EQ(study.trials()[1].reports.back().spent, 4.9);
  const int64_t number = study.ask()->number;
  EXPECT_FALSE(study.report(number, {1, -0.8}));
  EXPECT_TRUE(study.report(number, {2, -0.8, 5}));
}

TEST(Constraint, MeasuresTheViolationRelativeToTheBound) {
  const Constraint range{.metric = "memory", .at_least = 10, .at_most = 200};
  EXPECT_EQ(range.violation(100), 0);
  EXPECT_EQ(range.violation(300), 0.5);
  EXPECT_EQ(range.violation(5), 0.5);
  EXPECT_EQ(range.text(), "memory at least 10 and at most 200");
}

}  // namespace bellows::tune
