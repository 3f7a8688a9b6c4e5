#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "bellows/checkpoint/folder.h"
#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

State scored_state(int64_t step) {
  return {.model = {{"w", torch::full({50}, step)}}, .step = step};
}

std::vector<int64_t> best_steps(const Folder& folder) {
  std::vector<int64_t> steps;
  for (const ScoredCheckpoint& one : folder.best()) {
    EXPECT_EQ(load(one.path).step, one.step);
    steps.push_back(one.step);
  }
  return steps;
}

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace

TEST(Best, KeepsTheHighestScores) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  EXPECT_THAT(best_steps(folder), ElementsAre());
  const double scores[] = {0.5, 0.25, 0.75, 0.1, 0.6};
  std::vector<bool> saved;
  for (int i = 0; i < 5; ++i) saved.push_back(folder.save_best(scored_state(i), scores[i], 2).has_value());
  EXPECT_EQ(saved, std::vector<bool>({true, true, true, false, true}));
  EXPECT_THAT(best_steps(folder), ElementsAre(2, 4));
  EXPECT_EQ(folder.best().at(1).score, 0.6);
  EXPECT_EQ(files_in(temporary / "best"), 3u) << "two checkpoints and their scores";
  EXPECT_THAT(folder.list(), ElementsAre()) << "they are no points to resume from";
}

TEST(Best, TheOlderOneWinsATie) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  for (const int64_t step : {10, 20, 30}) folder.save_best(scored_state(step), -1.5, 2);
  EXPECT_THAT(best_steps(folder), ElementsAre(10, 20));
  EXPECT_TRUE(folder.is_among_best(15, -1.5, 2)) << "a run that was resumed comes by again";
  EXPECT_FALSE(folder.is_among_best(25, -1.5, 2));
}

TEST(Best, LastsAndANewSaveOfAStepReplacesIt) {
  const TemporaryFolder temporary;
  Folder(temporary.path()).save_best(scored_state(1), 0.3, 3);
  Folder(temporary.path()).save_best(scored_state(2), 0.4, 3);
  Folder folder(temporary.path());
  folder.save_best(scored_state(2), 0.2, 3);
  EXPECT_THAT(best_steps(folder), ElementsAre(1, 2));
  EXPECT_EQ(folder.best().at(1).score, 0.2);
  folder.save_best(scored_state(3), 0.9, 1);
  EXPECT_THAT(best_steps(folder), ElementsAre(3)) << "fewer are wanted now";
}

TEST(Best, ScoresThatAreNoNumbersStayOut) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  using Limits = std::numeric_limits<double>;
  for (const double score : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()})
    EXPECT_FALSE(folder.save_best(scored_state(1), score, 2));
  EXPECT_THROW(folder.save_best(scored_state(1), 1.0, 0), c10::ValueError);
  EXPECT_FALSE(std::filesystem::exists(temporary / "best"));
}

TEST(Best, WhatAPersonRemovedOrSpoiledDoesNoHarm) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  for (const int64_t step : {1, 2, 3}) folder.save_best(scored_state(step), static_cast<double>(step), 3);
  std::filesystem::remove(temporary / "best/step-000000000002.pt");
  EXPECT_THAT(best_steps(folder), ElementsAre(3, 1));
  for (const char* spoiled : {"", "[1, 2]", R"({"step-000000000001.pt": "good"})", R"({"../../etc/passwd": 1})"}) {
    write_bytes(temporary / "best/scores.json", spoiled);
    const CapturedLog log;
    EXPECT_THAT(best_steps(folder), ElementsAre()) << spoiled;
  }
  write_bytes(temporary / "best/scores.json", "{");
  const CapturedLog log;
  folder.save_best(scored_state(9), 0.5, 3);
  EXPECT_THAT(log.text(), HasSubstr("scores.json is damaged"));
  EXPECT_THAT(best_steps(folder), ElementsAre(9));
}

}  // namespace bellows::checkpoint
