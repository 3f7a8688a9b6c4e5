#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "process.h"
#include "tests/support/http_server.h"
#include "tests/support/slow_tests.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

/// Far more epochs than anybody waits for; a checkpoint after each.
std::vector<std::string> long_run(const std::string& out) {
  return {"train", "--data", digits(), "--model", "mlp", "--set", "epochs=1000000", "--out", out};
}

/// True after the first row of the table: an epoch is over, and its checkpoint written.
bool epoch_done(const Outcome& so_far) {
  const size_t head = so_far.err.find("epoch    steps");
  return head != std::string::npos && so_far.err.find(" %", head) != std::string::npos;
}

bool has_checkpoint(const std::string& folder) {
  std::error_code not_made_yet;
  for (const auto& entry : std::filesystem::directory_iterator(folder, not_made_yet)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name.ends_with(".pt")) return true;
  }
  return false;
}

/// Goes on for a few epochs and checks that it did not start anew.
void expect_it_resumes(const std::string& folder) {
  Process process({.arguments = {"train", "--out", folder, "--resume", "--json"}});
  ASSERT_TRUE(process.wait_until(epoch_done));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.err.find("\n    1 "), std::string::npos) << "epoch 1 was trained again:\n" << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(json["stopped"].get<bool>());
  EXPECT_EQ(json["epochs"][0]["epoch"], 0) << "the history holds what was before the stop";
}

}  // namespace

TEST(Signals, EndTheWaitForARecipeFromAPipe) {
  const Scratch folder;
  const std::string pipe = folder / "recipe.yaml";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Process process({.arguments = {"train", "--recipe", pipe, "--data", digits()}});
  const std::string words = "Waiting for text from " + pipe;
  ASSERT_TRUE(process.wait_until([&](const Outcome& so_far) { return so_far.err.find(words) != std::string::npos; }));
  process.signal(SIGTERM);
  const Outcome outcome = process.finish(60);
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, HasSubstr("stopped on request while waiting for text from " + pipe));
}

TEST(Signals, CtrlCSavesACheckpointThatResumes) {
  const Scratch folder;
  Process process({.arguments = long_run(folder / "run")});
  ASSERT_TRUE(process.wait_until(epoch_done));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("saving a checkpoint"));
  EXPECT_THAT(outcome.out, HasSubstr("--resume"));
  ASSERT_TRUE(has_checkpoint(folder / "run"));
  expect_it_resumes(folder / "run");
}

TEST(Signals, AUserSignalTracesTheNextSteps) {
  const Scratch folder;
  Process process({.arguments = long_run(folder / "run")});
  ASSERT_TRUE(process.wait_until(epoch_done));
  process.signal(SIGUSR2);
  const auto traced = [](const Outcome& so_far) { return so_far.err.find("ui.perfetto.dev") != std::string::npos; };
  EXPECT_TRUE(process.wait_until(traced));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run")) {
    if (!entry.path().filename().string().starts_with("trace-")) continue;
    std::ifstream file(entry.path());
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  int steps = 0;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const auto& event : trace.at("traceEvents")) steps += event.value("cat", "") == "step" ? 1 : 0;
  EXPECT_EQ(steps, 10);
}

TEST(Signals, SecondCtrlCLeavesAtOnce) {
  const Scratch folder;
  Process process({.arguments = long_run(folder / "run")});
  ASSERT_TRUE(process.wait_until(epoch_done));
  process.signal(SIGSTOP);  // both signals are pending when it goes on: the second finds the first one under way
  process.signal(SIGINT);
  process.signal(SIGTERM);
  process.signal(SIGCONT);
  const Outcome outcome = process.finish(20);
  EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(130, 143));
  EXPECT_EQ(outcome.out, "") << "an orderly end would have printed its result";
}

TEST(Signals, KilledRunResumesFromItsLastWholeCheckpoint) {
  const Scratch folder;
  {
    Process process({.arguments = long_run(folder / "run")});
    ASSERT_TRUE(process.wait_until([&](const Outcome&) { return has_checkpoint(folder / "run"); }));
    process.signal(SIGKILL);
    EXPECT_EQ(process.finish().exit_code, -SIGKILL);
  }
  ASSERT_TRUE(has_checkpoint(folder / "run"));
  expect_it_resumes(folder / "run");
}

TEST(Signals, ASecondRunKeepsOutOfAFolderInUse) {
  const Scratch folder;
  Process process({.arguments = long_run(folder / "run")});
  ASSERT_TRUE(process.wait_until(epoch_done));
  const Outcome second = run_bellows({"train", "--data", digits(), "--out", folder / "run", "--resume"});
  EXPECT_EQ(second.exit_code, 1) << second.err;
  EXPECT_THAT(second.err, ::testing::ContainsRegex("another run \\(pid [0-9]+ on .+\\) uses .+/run"));
  process.signal(SIGKILL);
  EXPECT_EQ(process.finish().exit_code, -SIGKILL);
  expect_it_resumes(folder / "run");
}

TEST(Signals, TerminateEndsInOrderToo) {
  const Scratch folder;
  Process process({.arguments = long_run(folder / "run")});
  ASSERT_TRUE(process.wait_until(epoch_done));
  process.signal(SIGTERM);
  EXPECT_EQ(process.finish().exit_code, 143);
  EXPECT_TRUE(has_checkpoint(folder / "run"));
}

namespace {

using Clock = std::chrono::steady_clock;
using bellows::testing::HttpServer;

constexpr double generous_s = 30;  // for a single run on a machine that is busy; the aim is one second

/// Ten signals a verb, 100 in the slow tests.
int64_t signals_to_send() {
  return slow_tests() ? 100 : 10;
}

/// Trains on a URL with a cache of its own.
Launch train_from(const HttpServer& server, const Scratch& folder) {
  return {.arguments = {"train", "--data", server.url("/d.tar"), "--model", "mlp"},
          .environment = {"BELLOWS_CACHE=" + (folder / "cache")}};
}

/// Sends the signal and expects an end in order, with words.
Outcome expect_end(Process& process) {
  process.signal(SIGTERM);
  Outcome outcome = process.finish(generous_s);
  EXPECT_EQ(outcome.exit_code, 143) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stopping"));
  return outcome;
}

/// How long runs took to end after a signal.
class EndTimes {
 public:
  explicit EndTimes(std::string verb) : verb_(std::move(verb)) {}
  ~EndTimes() {
    if (seconds_.empty()) return;
    std::sort(seconds_.begin(), seconds_.end());
    // A wait that does not listen to signals shows in most of them. Single ones may be late on a busy machine.
    EXPECT_LE(seconds_[seconds_.size() / 2], 1) << verb_;
    std::cout << verb_ << ": " << seconds_.size() << " signals, from signal to end: median "
              << seconds_[seconds_.size() / 2] << " s, longest " << seconds_.back() << " s\n";
  }

  /// Starts a run, sends a signal at some time of it, and checks how it ends.
  /// Params: longest_s – of the time from the run's start to the signal
  Outcome interrupted(const Launch& launch, double longest_s) {
    Process process(launch);
    if (!process.wait_for_handler()) return process.finish(generous_s);
    const double wait_s = std::uniform_real_distribution(0.0, longest_s)(random_);
    process.wait_until([](const Outcome&) { return false; }, wait_s);
    const auto begin = Clock::now();
    process.signal(SIGTERM);
    Outcome outcome = process.finish(generous_s);
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(0, 143)) << outcome.err;
    if (outcome.exit_code != 0) {
      EXPECT_THAT(outcome.err, HasSubstr("stop")) << "after " << wait_s << " s";
    }
    return outcome;
  }

 private:
  const std::string verb_;
  std::vector<double> seconds_;
  std::mt19937 random_{7};
};

void write_program(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

}  // namespace

TEST(Signals, EndTheWaitForAServerThatSendsNothing) {
  const Scratch folder;
  HttpServer server;
  server.put("/d.tar", std::string(100'000, 'x'));
  server.always("/d.tar", {.stall_after = 0});
  Process process(train_from(server, folder));
  ASSERT_TRUE(process.wait_until([&](const Outcome&) { return !server.served().empty(); }));
  EXPECT_THAT(expect_end(process).err, HasSubstr("stopped on request while downloading http://127.0.0.1"));
}

TEST(Signals, AWaitForAServerIsSaid) {
  const Scratch folder;
  HttpServer server;
  server.put("/d.tar", std::string(100'000, 'x'));
  server.always("/d.tar", {.stall_after = 0});
  Process process(train_from(server, folder));
  EXPECT_TRUE(process.wait_until([](const Outcome& so_far) {
    return so_far.err.find("/d.tar, which sends nothing for 10 s") != std::string::npos;
  }));
  expect_end(process);
}

TEST(Signals, EndTheWaitThatAServerAskedFor) {
  const Scratch folder;
  HttpServer server;
  server.always("/d.tar", {.status = 503, .retry_after_s = 600});
  Process process(train_from(server, folder));
  ASSERT_TRUE(process.wait_until(
      [](const Outcome& so_far) { return so_far.err.find("The next attempt starts in") != std::string::npos; }));
  EXPECT_THAT(expect_end(process).err, HasSubstr("status 503"));
}

TEST(Signals, EndTheWaitForACompilerThatHangs) {
  const Scratch folder;
  const std::string begun = folder / "begun";
  write_program(folder / "c++",
                "#!/bin/sh\ncase $1 in --version) echo 'c++ 1';; *) : >" + begun + "; sleep 600;; esac\n");
  Launch launch{.arguments = long_run(folder / "run"),
                .environment = {"BELLOWS_CXX=" + (folder / "c++"), "BELLOWS_CACHE=" + (folder / "cache")}};
  launch.arguments.insert(launch.arguments.end(), {"--set", "compile=step"});
  Process process(launch);
  ASSERT_TRUE(process.wait_until([&](const Outcome&) { return std::filesystem::exists(begun); }));
  expect_end(process);
  EXPECT_TRUE(has_checkpoint(folder / "run"));
}

TEST(Signals, EndTheWaitForARankThatNeverComes) {
  std::string port;
  {
    const HttpServer free;  // its port is free again once it is gone
    port = free.url().substr(free.url().rfind(':') + 1);
  }
  Process process({.arguments = {"train", "--data", digits(), "--model", "mlp"},
                   .environment = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}});
  if (!process.wait_for_handler()) GTEST_SKIP() << process.finish().err;
  process.wait_until([](const Outcome&) { return false; }, 1);
  expect_end(process);
}

TEST(Signals, ARankStopsWithTheOneThatWasAsked) {
  std::string port;
  {
    const HttpServer free;
    port = free.url().substr(free.url().rfind(':') + 1);
  }
  const auto rank = [&](int number) {
    return Launch{
        .arguments = {"train", "--data", digits(), "--model", "mlp", "--set", "epochs=1000000"},
        .environment = {"RANK=" + std::to_string(number), "WORLD_SIZE=2", "LOCAL_RANK=" + std::to_string(number),
                        "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}};
  };
  Process first(rank(0)), second(rank(1));
  ASSERT_TRUE(first.wait_until(epoch_done));
  second.signal(SIGTERM);
  EXPECT_EQ(second.finish().exit_code, 143);
  const Outcome outcome = first.finish();
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_THAT(outcome.err, HasSubstr("another rank received a stop signal"));
}

TEST(Signals, TrainEndsAtAnyTime) {
  const Scratch folder;
  EndTimes times("train");
  std::vector<std::string> arguments = long_run(folder / "run");
  arguments.push_back("--resume");
  for (int64_t i = 0; i < signals_to_send(); ++i) times.interrupted({.arguments = arguments}, 1.5);
  if (has_checkpoint(folder / "run")) expect_it_resumes(folder / "run");
}

TEST(Signals, LadderEndsAtAnyTime) {
  const Scratch folder;
  EndTimes times("ladder");
  const std::string json = folder / "ladder.json";
  for (int64_t i = 0; i < signals_to_send(); ++i) {
    times.interrupted({.arguments = {"ladder", "--data", digits(), "--quick", "--json", json}}, 3);
    if (!std::filesystem::exists(json)) continue;
    std::ifstream file(json);
    EXPECT_TRUE(nlohmann::json::accept(file)) << "half a file";
    std::filesystem::remove(json);
  }
}

TEST(Signals, PackEndsAtAnyTime) {
  const Scratch folder;
  EndTimes times("pack");
  const Launch launch{.arguments = {"pack", digits(), folder / "d.tar", "--split", "train"}};
  for (int64_t i = 0; i < signals_to_send(); ++i) {
    times.interrupted(launch, 0.5);
    if (!std::filesystem::exists(folder / "d.tar")) continue;
    std::filesystem::remove_all(folder.path());
    std::filesystem::create_directory(folder.path());
  }
  Process last(launch);
  const Outcome outcome = last.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("All samples were read back, and "));
}

TEST(Signals, LaunchEndsAtAnyTime) {
  const Scratch folder;
  EndTimes times("launch");
  std::vector<std::string> arguments = {"launch", "-n", "2", "--", BELLOWS_BIN_DIR "/bellows"};
  const std::vector<std::string> run = long_run(folder / "run");
  arguments.insert(arguments.end(), run.begin(), run.end());
  arguments.push_back("--resume");
  for (int64_t i = 0; i < signals_to_send(); ++i) times.interrupted({.arguments = arguments}, 3);
}

}  // namespace bellows::cli
