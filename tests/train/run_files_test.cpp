#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bellows/io/records/event_file.h"
#include "bellows/train/run/run_record.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

/// Twelve steps an epoch, everything logged.
Recipe logged(const TemporaryFolder& folder) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.image_size = 8;
  recipe.run_folder = folder.path();
  recipe.log = "csv, json, tensorboard";
  recipe.logging_steps = 1;
  recipe.save_steps = 5;
  return recipe;
}

/// Params: stop_after – asks for a stop after that step; 0: never
FitResult fit_until(const Recipe& recipe, bool resume, int64_t stop_after) {
  Trainer* running = nullptr;
  Callbacks callbacks;
  callbacks.on_step = [&](const TrainLoop& loop) {
    if (loop.step_count() == stop_after) running->request_stop();
  };
  Trainer trainer(recipe, callbacks);
  running = &trainer;
  trainer.resume(resume);
  return trainer.fit();
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::istringstream text(read_bytes(path));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("step,")) continue;
    steps.push_back(line.starts_with("{") ? Json::parse(line).at("step").get<int64_t>() : std::stoll(line));
  }
  return steps;
}

std::vector<int64_t> one_to(int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step) steps.push_back(step);
  return steps;
}

}  // namespace

TEST(RunFiles, EveryStepStandsOnceAlsoWhenTheRunWasResumed) {
  const TemporaryFolder folder;
  const Recipe recipe = logged(folder);
  EXPECT_TRUE(fit_until(recipe, false, 8).stopped);
  EXPECT_EQ(steps_in(folder / "log.csv"), one_to(8));
  ASSERT_TRUE(std::filesystem::remove(folder / "step-000000000008.pt"));
  EXPECT_FALSE(fit_until(recipe, true, 0).stopped);  // from step 5: 6 to 8 are done again
  EXPECT_EQ(steps_in(folder / "log.csv"), one_to(24));
  EXPECT_EQ(steps_in(folder / "log.jsonl"), one_to(24));
}

TEST(RunFiles, RowsHaveLossRateAndEvaluation) {
  const TemporaryFolder folder;
  const FitResult result = fit_until(logged(folder), false, 0);
  std::istringstream text(read_bytes(folder / "log.jsonl"));
  std::vector<Json> rows;
  for (std::string line; std::getline(text, line);) rows.push_back(Json::parse(line));
  ASSERT_EQ(rows.size(), 24U);
  for (const Json& row : rows) EXPECT_TRUE(row.contains("loss") && row.contains("lr")) << row;
  EXPECT_EQ(rows[11].at("eval_accuracy"), result.history[0].eval_accuracy);
  EXPECT_EQ(rows[23].at("train_loss"), result.history[1].train_loss);
}

TEST(RunFiles, TheRecordIsWhatThisProcessIs) {
  const TemporaryFolder folder;
  const Recipe recipe = logged(folder);
  fit_until(recipe, false, 3);
  const RunRecord record = run_record_from_json(read_bytes(folder / "run.json"));
  EXPECT_THAT(record.data, HasSubstr(" samples, "));
  EXPECT_TRUE(differences(record, this_run(with_model_defaults(recipe), record.data)).empty());
  EXPECT_EQ(Recipe::load(folder / "recipe.yaml"), with_model_defaults(recipe));
}

TEST(RunFiles, ATraceShowsThePhasesOfItsSteps) {
  const TemporaryFolder folder;
  Recipe recipe = logged(folder);
  recipe.trace_steps = "3-4";
  fit_until(recipe, false, 6);
  std::map<std::string, int> counts;
  const Json trace = Json::parse(read_bytes(folder / "trace-3-4.json"));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") ++counts[event.at("name").get<std::string>()];
  }
  for (const char* phase : {"step 3", "step 4"}) EXPECT_EQ(counts[phase], 1) << phase;
  for (const char* phase : {"load", "forward", "backward", "optimizer"}) EXPECT_EQ(counts[phase], 2) << phase;
  EXPECT_GE(counts["aten::addmm"], 2);
  EXPECT_GE(counts["AddmmBackward0"], 2) << "autograd's nodes";
}

TEST(RunFiles, TensorBoardSeesTheWholeRun) {
  const TemporaryFolder folder;
  fit_until(logged(folder), false, 0);
  std::set<std::string> tags;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (!entry.path().filename().string().starts_with("events.")) continue;
    for (const io::Event& event : io::read_events(entry.path())) tags.insert(event.tag);
  }
  for (const char* tag :
       {"loss", "lr", "eval_accuracy", "train_loss", "final/accuracy", "_hparams_/session_end_info"}) {
    EXPECT_TRUE(tags.contains(tag)) << tag;
  }
}

}  // namespace bellows::train
