#include "bellows/train/run/run_log.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bellows/io/records/event_file.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Json = nlohmann::json;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream text(read_bytes(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// The rows of log.csv without seconds and time: "step,…" each, the header first.
std::vector<std::string> csv_of(const TemporaryFolder& folder) {
  std::vector<std::string> rows;
  for (const std::string& line : lines_of(folder / "log.csv")) {
    const size_t step = line.find(','), seconds = line.find(',', step + 1), time = line.find(',', seconds + 1);
    rows.push_back(line.substr(0, step) + (time == std::string::npos ? "" : line.substr(time)));
  }
  return rows;
}

std::vector<Json> json_of(const TemporaryFolder& folder) {
  std::vector<Json> rows;
  for (const std::string& line : lines_of(folder / "log.jsonl")) rows.push_back(Json::parse(line));
  return rows;
}

/// Step and value of every scalar that TensorBoard would show, after what later files purge.
std::vector<std::pair<int64_t, double>> scalars_of(const TemporaryFolder& folder, const std::string& tag) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with("events.")) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::pair<int64_t, double>> result;
  for (const std::string& file : files) {
    for (const io::Event& event : io::read_events(file)) {
      if (event.kind == io::Event::Kind::session_start)
        std::erase_if(result, [&](const auto& point) { return point.first >= event.step; });
      if (event.kind == io::Event::Kind::scalar && event.tag == tag) result.emplace_back(event.step, event.value);
    }
  }
  return result;
}

void log_steps(RunLog& log, int64_t first, int64_t last, double plus = 0) {
  for (int64_t step = first; step <= last; ++step) log.step(step, {{"loss", static_cast<double>(step) + plus}});
}

}  // namespace

TEST(LogKinds, AreAListOfThree) {
  EXPECT_TRUE(parse_log_kinds("").empty());
  EXPECT_THAT(parse_log_kinds("csv, json,tensorboard"), ElementsAre("csv", "json", "tensorboard"));
  EXPECT_THAT(error_of([] { parse_log_kinds("csv, tensorbord"); }), HasSubstr("Did you mean \"tensorboard\"?"));
  EXPECT_THAT(error_of([] { parse_log_kinds("csv,csv"); }), HasSubstr("twice"));
}

TEST(RunLog, WritesARowAStep) {
  const TemporaryFolder folder;
  RunLog log("csv,json", folder / "");
  log.step(20, {{"loss", 0.5}, {"lr", 0.1}});
  log.step(40, {{"loss", 1.0 / 3}, {"lr", 1e-20}});
  EXPECT_THAT(csv_of(folder), ElementsAre("step,loss,lr", "20,0.5,0.1", "40,0.3333333333333333,1e-20"));
  const std::vector<Json> rows = json_of(folder);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1].at("step"), 40);
  EXPECT_EQ(rows[1].at("loss"), 1.0 / 3);
  EXPECT_GE(rows[1].at("seconds"), rows[0].at("seconds"));
  EXPECT_THAT(rows[0].at("time").get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
}

TEST(RunLog, PutsAllValuesOfAStepIntoOneRow) {
  const TemporaryFolder folder;
  RunLog log("csv,json,tensorboard", folder.path());
  log.step(1, {{"loss", 2}});
  log.step(2, {{"loss", 1.5}});
  log.epoch({.epoch = 0, .steps = 2, .train_loss = 1.75, .train_accuracy = 0.5, .train_seconds = 3});
  log.step(2, {{"loss", 1}});
  log.step(3, {{"loss", 0.5}});
  log.flush();
  EXPECT_THAT(csv_of(folder), ElementsAre("step,loss,epoch,train_loss,train_accuracy,train_seconds", "1,2,,,,",
                                          "2,1,0,1.75,0.5,3", "3,0.5,,,,"));
  const std::vector<Json> rows = json_of(folder);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].at("loss"), 1);
  EXPECT_EQ(rows[1].at("train_accuracy"), 0.5);
  EXPECT_FALSE(rows[1].contains("eval_loss"));
  EXPECT_THAT(scalars_of(folder, "train_loss"), ElementsAre(Pair(2, 1.75)));
}

TEST(RunLog, ShowsAValueThatIsGivenTwiceOnce) {
  const TemporaryFolder folder;
  RunLog log("tensorboard", folder.path());
  log.step(5, {{"eval_loss", 0.25}, {"eval_accuracy", 0.5}});
  log.epoch({.epoch = 0, .steps = 5, .eval_loss = 0.25, .eval_accuracy = 0.5, .eval_seconds = 1});
  log.flush();
  EXPECT_THAT(scalars_of(folder, "eval_loss"), ElementsAre(Pair(5, 0.25)));
  EXPECT_THAT(scalars_of(folder, "eval_seconds"), ElementsAre(Pair(5, 1)));
}

TEST(RunLog, QuotesNamesAndKeepsWhatIsNoNumber) {
  const TemporaryFolder folder;
  {
    RunLog log("csv,json", folder.path());
    log.step(1, {{"a, \"b\"\nc", nan_value}, {"größe", -std::numeric_limits<double>::infinity()}});
  }
  EXPECT_THAT(read_bytes(folder / "log.csv"), HasSubstr("step,seconds,time,\"a, \"\"b\"\"\nc\",größe\n1,"));
  EXPECT_THAT(read_bytes(folder / "log.csv"), HasSubstr(",nan,-inf\n"));
  EXPECT_TRUE(json_of(folder)[0].at("größe").is_null());
  RunLog resumed("csv,json", folder.path(), 1);
  resumed.step(2, {{"a, \"b\"\nc", 7}});
  EXPECT_THAT(read_bytes(folder / "log.csv"), HasSubstr(",nan,-inf\n2,"));
  EXPECT_EQ(json_of(folder)[1].at("a, \"b\"\nc"), 7);
}

TEST(RunLog, ANewNameAddsAColumnToAllRows) {
  const TemporaryFolder folder;
  {
    RunLog log("csv", folder.path());
    log_steps(log, 1, 2);
    log.step(2, {{"eval_loss", 9}});
    log.step(3, {{"grad_norm", 4}});
  }
  EXPECT_THAT(csv_of(folder), ElementsAre("step,loss,eval_loss,grad_norm", "1,1,,", "2,2,9,", "3,,,4"));
}

TEST(RunLog, AResumeCutsWhatStandsBehindItsStep) {
  const TemporaryFolder folder;
  {
    RunLog log("csv,json,tensorboard", folder.path());
    log_steps(log, 1, 9);
  }
  {
    RunLog log("csv,json,tensorboard", folder.path(), 6);
    EXPECT_EQ(csv_of(folder).size(), 7U);
    log_steps(log, 7, 12, 100);
  }
  EXPECT_THAT(csv_of(folder), ElementsAre("step,loss", "1,1", "2,2", "3,3", "4,4", "5,5", "6,6", "7,107", "8,108",
                                          "9,109", "10,110", "11,111", "12,112"));
  EXPECT_EQ(json_of(folder).size(), 12U);
  const auto losses = scalars_of(folder, "loss");
  ASSERT_EQ(losses.size(), 12U);
  EXPECT_EQ(losses[5], std::pair(int64_t{6}, 6.0));
  EXPECT_EQ(losses[6], std::pair(int64_t{7}, 107.0));
}

TEST(RunLog, AResumeGoesOnWithTheRowOfItsStepAndWithItsSeconds) {
  const TemporaryFolder folder;
  write_bytes(folder / "log.csv", "step,seconds,time,loss\n4,1000.5,2026-01-01T00:00:00Z,0.25\n");
  RunLog log("csv,json", folder.path(), 4);
  log.step(4, {{"eval_loss", 0.5}});
  log.step(5, {{"loss", 0.125}});
  EXPECT_THAT(csv_of(folder), ElementsAre("step,loss,eval_loss", "4,0.25,0.5", "5,0.125,"));
  const std::vector<Json> rows = json_of(folder);
  ASSERT_EQ(rows.size(), 2U) << "a log that begins later has the row of the resume's step, too";
  EXPECT_EQ(rows[0].at("time"), "2026-01-01T00:00:00Z");
  EXPECT_GE(rows[1].at("seconds"), 1000.5);
  EXPECT_LT(rows[1].at("seconds"), 2000);
}

TEST(RunLog, ANewRunReplacesTheLogsOfTheOneBefore) {
  const TemporaryFolder folder;
  {
    RunLog log("csv,json,tensorboard", folder.path());
    log.step(0, {{"old", 1}});
    log_steps(log, 1, 5);
  }
  RunLog log("csv,json,tensorboard", folder.path());
  log.step(1, {{"loss", 7}});
  log.flush();
  EXPECT_EQ(csv_of(folder).size(), 2U);
  EXPECT_EQ(json_of(folder).size(), 1U);
  EXPECT_THAT(scalars_of(folder, "loss"), ElementsAre(Pair(1, 7)));
  EXPECT_TRUE(scalars_of(folder, "old").empty());
}

TEST(RunLog, ARowThatAKillCutShortIsCut) {
  const TemporaryFolder folder;
  {
    RunLog log("csv,json", folder.path());
    log_steps(log, 1, 3);
  }
  for (const char* name : {"log.csv", "log.jsonl"}) {
    const std::string text = read_bytes(folder / name);
    write_bytes(folder / name, text.substr(0, text.size() - 3));
  }
  {
    RunLog log("csv,json", folder.path(), 3);
    log.step(4, {{"loss", 4}});
  }
  EXPECT_THAT(csv_of(folder), ElementsAre("step,loss", "1,1", "2,2", "4,4"));
  EXPECT_EQ(json_of(folder).size(), 3U);
}

TEST(RunLog, LeavesForeignFilesAlone) {
  const TemporaryFolder folder;
  write_bytes(folder / "log.csv", "name,phone\nAda,1\n");
  EXPECT_THAT(error_of([&] { RunLog("csv", folder.path()); }), HasSubstr("not the log of a run"));
  EXPECT_EQ(read_bytes(folder / "log.csv"), "name,phone\nAda,1\n");
  write_bytes(folder / "log.jsonl", "hello\n");
  EXPECT_THAT(error_of([&] { RunLog("json", folder.path(), 3); }), HasSubstr("not the log of a run"));
}

TEST(RunLog, WithoutKindsOrFolderDoesNothing) {
  const TemporaryFolder folder;
  RunLog none("", folder / "x"), nowhere("csv,tensorboard", "");
  for (RunLog* log : {&none, &nowhere}) {
    EXPECT_FALSE(*log);
    log->step(1, {{"loss", 1}});
    log->text("t", "x", 1);
    log->hyperparameters({}, {}, 1);
    log->flush();
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(RunLog, RefusesStepsOutOfOrderAndItsOwnNames) {
  const TemporaryFolder folder;
  RunLog log("csv", folder.path());
  log_steps(log, 5, 5);
  EXPECT_THAT(error_of([&] { log_steps(log, 4, 4); }), HasSubstr("step 4 follows step 5"));
  EXPECT_THAT(error_of([&] { log.step(6, {{"time", 1}}); }), HasSubstr("Got the name \"time\""));
  EXPECT_THAT(error_of([&] { RunLog("csv", folder / "log.csv"); }), HasSubstr("cannot create the folder"));
}

TEST(RunLog, ALogThatCannotBeWrittenEndsAndTheOthersGoOn) {
  const TemporaryFolder folder;
  const CapturedLog messages;
  RunLog log("csv,json", folder.path());
  log_steps(log, 1, 30);
  {
    const checkpoint::FileSizeLimit limit(static_cast<rlim_t>(read_bytes(folder / "log.jsonl").size() + 5));
    log_steps(log, 31, 33);
  }
  EXPECT_THAT(messages.text(), HasSubstr("log.jsonl"));
  EXPECT_THAT(messages.text(), HasSubstr("the run continues"));
  log_steps(log, 34, 36);
  EXPECT_EQ(csv_of(folder).size(), 37U);
  RunLog resumed("json", folder.path(), 30);
  log_steps(resumed, 31, 31);
  EXPECT_EQ(json_of(folder).size(), 31U);
}

TEST(RunLog, TensorBoardGetsTheRest) {
  const TemporaryFolder folder;
  Recipe recipe = digits_recipe();
  recipe.run_folder = folder.path();
  {
    const Model model = dropout_net();
    model.forward(torch::ones({2, 8})).sum().backward();
    RunLog log("tensorboard", folder.path());
    log.text("recipe", recipe.to_yaml(), 0);
    log.image("first", torch::rand({3, 4, 4}), 0);
    log.histograms(model, 1);
    log.hyperparameters(recipe, {{"accuracy", 0.75}}, 24);
    EXPECT_THAT(error_of([&] { log.image("bad", torch::rand({7}), 0); }), HasSubstr("[C, H, W]"));
  }
  std::vector<std::string> histograms;
  std::map<std::string, io::HyperParameter> parameters;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    for (const io::Event& event : io::read_events(entry.path())) {
      if (event.kind == io::Event::Kind::histogram) histograms.push_back(event.tag);
      parameters.insert(event.parameters.begin(), event.parameters.end());
    }
  }
  EXPECT_EQ(histograms.size(), 8U);
  EXPECT_THAT(histograms, testing::Contains("0.weight.grad"));
  EXPECT_EQ(parameters.at("lr"), io::HyperParameter(0.1));
  EXPECT_EQ(parameters.at("batch_size"), io::HyperParameter(32.0));
  EXPECT_EQ(parameters.at("channels_last"), io::HyperParameter(false));
  EXPECT_EQ(parameters.at("optimizer_impl"), io::HyperParameter("loop"));
  EXPECT_FALSE(parameters.contains("run_folder"));
  EXPECT_THAT(scalars_of(folder, "final/accuracy"), ElementsAre(Pair(24, 0.75)));
}

}  // namespace bellows::train
