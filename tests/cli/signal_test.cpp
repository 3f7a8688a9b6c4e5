#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "process.h"

namespace bellows::cli {

namespace {

using testing::HasSubstr;

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

TEST(Signals, SecondCtrlCLeavesAtOnce) {
  const Scratch folder;
  Process process({.arguments = long_run(folder / "run")});
  ASSERT_TRUE(process.wait_until(epoch_done));
  process.signal(SIGSTOP);  // both signals are pending when it goes on: the second finds the first one under way
  process.signal(SIGINT);
  process.signal(SIGTERM);
  process.signal(SIGCONT);
  const Outcome outcome = process.finish(20);
  EXPECT_THAT(outcome.exit_code, testing::AnyOf(130, 143));
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
  EXPECT_THAT(second.err, testing::ContainsRegex("another run \\(pid [0-9]+ on .+\\) works in .+/run"));
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

}  // namespace bellows::cli
