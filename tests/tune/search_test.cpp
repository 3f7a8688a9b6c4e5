#include "bellows/tune/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "bellows/comm/rendezvous/store.h"
#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "bellows/tune/trial_process.h"
#include "tests/support/slow_tests.h"
#include "tests/support/temporary_folder.h"

namespace bellows::tune {

namespace {

using ::testing::HasSubstr;

/// Trials are shell scripts, which get the arguments of `bellows train`: --recipe $2 --json $4. The learning rate is $lr.
class SearchTest : public ::testing::Test {
 protected:
  static StudyFile study(const std::string& more = "") {
    return parse_study("space:\n  lr: [0.1, 0.2, 0.3]\nsampler: grid\n" + more, "study.yaml");
  }

  std::vector<std::string> command(const std::string& script) const {
    std::ofstream(folder_ + "/trial.sh") << "lr=$(sed -n 's/^lr: //p' $2); folder=$(dirname $2)\n" << script << "\n";
    return {"/bin/sh", folder_ + "/trial.sh"};
  }

  /// Runs all trials and returns the failure of the trial with this learning rate.
  std::string failure(const StudyFile& file, const std::string& script, const std::string& lr = "0.1") const {
    Study study(file.study, "", false);
    EXPECT_EQ(run_search(study, file, {.folder = folder_, .command = command(script), .jobs = 2}), 0);
    for (const Trial& trial : study.trials()) {
      if (file.study.space.text(trial.values) == "lr=" + lr) return trial.failure;
    }
    return "no such trial";
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

/// Runs `action` in a process of its own and returns its ID.
pid_t forked(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);
  try {
    action();
  } catch (...) {  // must not continue with the other tests
    _exit(1);
  }
  _exit(0);
}

constexpr const char* reports_lr = "echo \"{\\\"eval_accuracy\\\": $lr, \\\"eval_loss\\\": 1}\" > $4";

}  // namespace

TEST_F(SearchTest, FindsTheBestAndWritesItsRecipe) {
  const StudyFile file = study();
  Study study(file.study, folder_ + "/study", false);
  int64_t changes = 0;
  const SearchOptions options{.folder = folder_ + "/study",
                              .command = command(std::string(reports_lr) + "; echo hello"),
                              .jobs = 2,
                              .on_change = [&](const Study&) { ++changes; }};
  EXPECT_EQ(run_search(study, file, options), 0);
  EXPECT_EQ(study.finished(), 3);  // all configurations, although 50 trials are allowed
  EXPECT_EQ(changes, 6);
  EXPECT_EQ(best_trial(study.trials())->metrics.at("accuracy"), 0.3);
  EXPECT_EQ(train::Recipe::load(folder_ + "/study/best.yaml").lr, 0.3);
  EXPECT_EQ(read_text_file(folder_ + "/study/trial-0000/output.txt"), "hello\n");
}

TEST_F(SearchTest, TrialsThatFailAreReportedAndExcluded) {
  const auto if_first = [](const std::string& words) {
    return "if [ $lr = 0.1 ]; then " + words + "; fi\n" + reports_lr;
  };
  EXPECT_EQ(failure(study(), if_first("exit 3")), "the trial ended with exit code 3");
  EXPECT_EQ(failure(study(), if_first("kill -SEGV $$")), "the trial was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(failure(study(), if_first("echo 'bellows: cannot write x: No space left on device (28).' >&2; exit 1")),
            "cannot write x: No space left on device (28)");
  EXPECT_EQ(failure(study(), if_first("exit 0")), "the trial did not report accuracy");
  EXPECT_EQ(failure(study("trial_time: 0.5s\n"), if_first("exec sleep 1000")), "the trial did not end within 500 ms");
}

TEST_F(SearchTest, TrialsThatNeedTooMuchMemoryAreKilled) {
  const std::string script =
      "if [ $lr = 0.1 ]; then x=$(head -c 400000000 /dev/zero | tr '\\0' a); sleep 100; fi\n" + std::string(reports_lr);
  EXPECT_THAT(failure(study("trial_memory: 100MB\n"), script), HasSubstr("used more than 100.0 MiB"));
}

TEST_F(SearchTest, KeysThatDoNotFitTogetherAreAFailure) {
  const StudyFile file = parse_study(
      "space:\n  gradient_accumulation_steps: [1, 2]\n  optimizer_in_backward: [true, false]\n", "study.yaml");
  Study study(file.study, "", false);
  run_search(study, file, {.folder = folder_, .command = command("echo '{\"eval_accuracy\": 1}' > $4")});
  EXPECT_EQ(study.finished(), 4);
  for (const Trial& trial : study.trials()) {
    const bool conflict = trial.values[0] == 1 && trial.values[1] == 0;
    EXPECT_EQ(trial.failure.find("accumulates gradients") != std::string::npos, conflict) << trial.failure;
  }
}

TEST_F(SearchTest, AnObjectiveThatNoTrialReportsIsAnError) {
  const StudyFile file = study("objective: {maximize: f1}\n");
  Study study(file.study, "", false);
  try {
    run_search(study, file, {.folder = folder_, .command = command(reports_lr)});
    ADD_FAILURE();
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(user_message(error), HasSubstr("none of 3 trials reported f1"));
    EXPECT_THAT(user_message(error), HasSubstr("/trial-0002/output.txt"));
  }
}

// A bad trial ends only if it is pruned.
TEST_F(SearchTest, PrunesTrialsThatAreRunning) {
  const StudyFile file = study("seed: 3\nhalving: {first_rung: 1, factor: 2}\n");
  Study study(file.study, "", false);
  const std::string log =
      "mkdir -p $folder/run; for step in 1 2; do echo \"{\\\"step\\\": $step, \\\"eval_loss\\\": 1, "
      "\\\"eval_accuracy\\\": $lr}\" >> $folder/run/log.jsonl; done\n";
  // The trial with the best rate must run first. The seed of the grid decides the order.
  const std::string script = log + "if [ $lr != 0.3 ] && [ -e " + folder_ + "/done ]; then exec sleep 1000; fi\n" +
                             "if [ $lr = 0.3 ]; then touch " + folder_ + "/done; fi\n" + reports_lr;
  run_search(study, file, {.folder = folder_, .command = command(script)});
  bool best_ran = false;
  for (const Trial& trial : study.trials()) {
    const bool best = file.study.space.text(trial.values) == "lr=0.3";
    if (best_ran) {
      EXPECT_EQ(trial.state, TrialState::pruned);
    }
    best_ran = best_ran || best;
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/trial-0000/run"));
  }
  const auto pruned = [](const Trial& trial) { return trial.state == TrialState::pruned; };
  EXPECT_EQ(std::count_if(study.trials().begin(), study.trials().end(), pruned), 2);
}

// The search is killed while a trial runs. The trial dies, too, and its configuration runs again.
TEST_F(SearchTest, ResumesAfterAKill) {
  const StudyFile file = study();
  const std::string folder = folder_ + "/study", mark = folder_ + "/pid";
  const SearchOptions options{
      .folder = folder,
      .command = command("if [ $lr = 0.2 ] && [ ! -e " + mark + " ]; then echo $$ > " + mark + ".tmp; mv " + mark +
                         ".tmp " + mark + "; exec sleep 1000; fi\n" + reports_lr)};
  const pid_t child = forked([&] {
    Study study(file.study, folder, false);
    run_search(study, file, options);
  });
  while (!std::filesystem::exists(mark)) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the search ended before it was killed";
    usleep(1000);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  pid_t trial = 0;
  std::ifstream(mark) >> trial;
  while (kill(trial, 0) == 0 && std::filesystem::exists("/proc/" + std::to_string(trial) + "/exe")) usleep(1000);
  Study study(file.study, folder, true);
  EXPECT_EQ(run_search(study, file, options), 0);
  EXPECT_EQ(study.finished(), 3);
  EXPECT_EQ(std::count_if(study.trials().begin(), study.trials().end(),
                          [](const Trial& t) { return t.state == TrialState::interrupted; }),
            1);
  EXPECT_EQ(best_trial(study.trials())->metrics.at("accuracy"), 0.3);
}

namespace {

/// The results of complete trials, by configuration.
std::map<double, double> complete_trials(const Study& study) {
  std::map<double, double> results;
  for (const Trial& trial : study.trials()) {
    if (trial.state != TrialState::complete) continue;
    EXPECT_TRUE(results.emplace(trial.values[0], trial.objective).second) << "configuration " << trial.values[0];
  }
  return results;
}

}  // namespace

// 3 kills at random moments; 20 with script/test --slow.
TEST_F(SearchTest, KillsLoseNoFinishedTrial) {
  const int kills = slow_tests() ? 20 : 3;
  std::string rates;
  const int trials = 8 * kills;
  for (int i = 1; i <= trials; ++i) rates += (i > 1 ? ", " : "") + std::to_string(i);
  const StudyFile file = parse_study(
      "space:\n  lr: [" + rates + "]\nsampler: grid\ntrials: " + std::to_string(trials) + "\n", "study.yaml");
  const std::string folder = folder_ + "/study";
  const SearchOptions options{
      .folder = folder, .command = command(std::string("sleep 0.03\n") + reports_lr), .jobs = 2};
  std::map<double, double> before;
  std::mt19937 random(7);
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const pid_t child = forked([&] {
      Study study(file.study, folder, kill_number > 0);
      run_search(study, file, options);
    });
    const auto finished = [&] {
      std::ifstream journal(folder + "/trials.jsonl");
      size_t count = 0;
      for (std::string line; std::getline(journal, line);) count += line.find("\"kind\":\"end\"") != line.npos;
      return count;
    };
    while (finished() <= before.size()) {
      ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the search ended before it was killed";
      usleep(1000);
    }
    usleep(std::uniform_int_distribution<useconds_t>(0, 60000)(random));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Study study(file.study, folder, true);
    const std::map<double, double> now = complete_trials(study);
    EXPECT_GT(now.size(), before.size());
    for (const auto& [values, objective] : before) EXPECT_EQ(now.at(values), objective);
    before = now;
  }
  Study study(file.study, folder, true);
  EXPECT_EQ(run_search(study, file, options), 0);
  EXPECT_EQ(complete_trials(study).size(), static_cast<size_t>(trials));
}

// Two processes run trials: this one, and a child that serves a slot. Both report their evaluations.
TEST_F(SearchTest, OtherProcessesRunTrials) {
  const StudyFile file = study("halving: {first_rung: 100, factor: 2}\n");
  const std::string log =
      "mkdir -p $folder/run; for step in 1 2; do echo \"{\\\"step\\\": $step, \\\"eval_loss\\\": 1, "
      "\\\"eval_accuracy\\\": $lr}\" >> $folder/run/log.jsonl; done\n";
  const SearchOptions options{
      .folder = folder_, .command = command("echo $PPID >> " + folder_ + "/parents; sleep 0.2\n" + log + reports_lr)};
  const pid_t child = forked([&] {
    const comm::Store store = comm::Store::in_file(folder_ + "/store", 2);
    if (serve_trials(file, options, remote_slots(store, 1, 1)) != 0) _exit(1);
  });
  const comm::Store store = comm::Store::in_file(folder_ + "/store", 2);
  SearchOptions with_remote = options;
  with_remote.remote = remote_slots(store, 1, 1);
  Study study(file.study, "", false);
  EXPECT_EQ(run_search(study, file, with_remote), 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(study.finished(), 3);
  for (const Trial& trial : study.trials()) {
    EXPECT_EQ(trial.state, TrialState::complete) << trial.failure;
    EXPECT_EQ(trial.reports.size(), 2u);
    EXPECT_GT(trial.metrics.at("peak_memory"), 0);
  }
  EXPECT_EQ(best_trial(study.trials())->metrics.at("accuracy"), 0.3);
  std::set<pid_t> parents;
  std::ifstream list(folder_ + "/parents");
  for (pid_t parent = 0; list >> parent;) parents.insert(parent);
  EXPECT_EQ(parents, (std::set<pid_t>{getpid(), child}));
}

// The trial of the other process runs when the search stops, and ends with it.
TEST_F(SearchTest, ASearchThatStopsEndsTheTrialsOfOtherProcesses) {
  const StudyFile file = study();
  const SearchOptions options{.folder = folder_,
                              .command = command("if mkdir " + folder_ +
                                                 "/first; then exec sleep 1000; fi\n"
                                                 "while [ ! -e " +
                                                 folder_ + "/first ]; do sleep 0.01; done; kill -TERM " +
                                                 std::to_string(getpid()) + "; exec sleep 1000")};
  const pid_t child = forked([&] {
    const comm::Store store = comm::Store::in_file(folder_ + "/store", 2);
    serve_trials(file, options, remote_slots(store, 1, 1));
  });
  const comm::Store store = comm::Store::in_file(folder_ + "/store", 2);
  SearchOptions with_remote = options;
  with_remote.remote = remote_slots(store, 1, 1);
  Study study(file.study, "", false);
  EXPECT_EQ(run_search(study, file, with_remote), SIGTERM);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(SearchTest, StopsOnASignal) {
  const StudyFile file = study();
  Study study(file.study, "", false);
  EXPECT_EQ(run_search(study, file, {.folder = folder_, .command = command("kill -TERM $PPID; exec sleep 1000")}),
            SIGTERM);
}

TEST(DivideCores, GivesEachTrialItsOwnCores) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  const auto count = static_cast<size_t>(CPU_COUNT(&all));
  EXPECT_EQ(divide_cores(1).front().size(), count);
  std::vector<int> used;
  for (const std::vector<int>& part : divide_cores(static_cast<int64_t>(count))) {
    ASSERT_EQ(part.size(), 1u);
    used.push_back(part.front());
  }
  EXPECT_EQ(std::set<int>(used.begin(), used.end()).size(), count);
  for (const std::vector<int>& part : divide_cores(static_cast<int64_t>(count) + 1)) EXPECT_EQ(part.size(), 1u);
}

}  // namespace bellows::tune
