// `bellows evaluate` and `bellows predict` after a short training run.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bellows/data/dataset.h"
#include "bellows/data/order/labels.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"
#include "failure.h"
#include "forked.h"
#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  return all;
}

/// One epoch of an MLP on the digits.
class TrainedDigits : public TrainedMlp<TrainedDigits> {
 protected:
  static double accuracy() { return result()["epochs"][0]["eval_accuracy"].get<double>(); }
  static std::string checkpoint() { return result()["checkpoint"].get<std::string>(); }
};

}  // namespace

TEST_F(TrainedDigits, EvaluateGivesTheAccuracyOfTraining) {
  const Outcome outcome = run_bellows({"evaluate", "--run", run(), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["accuracy"].get<double>(), accuracy());
  EXPECT_EQ(result["samples"], 359);
  EXPECT_EQ(result["step"], 45);
  EXPECT_GT(result["weight_bytes"].get<int64_t>(), 0);
  EXPECT_GT(result["latency_median_s"].get<double>(), 0);
  const Json same = Json::parse(run_bellows({"evaluate", "--recipe", run() + "/recipe.yaml", "--weights", checkpoint(),
                                             "--data", digits(), "--split", "test", "--json"})
                                    .out);
  EXPECT_EQ(same["loss"], result["loss"]);
}

TEST_F(TrainedDigits, EvaluateWithoutARecipe) {
  const std::string file = digits() + "/train-000.tar";
  const auto evaluate = [&](std::vector<std::string> words) {
    for (const char* word : {"evaluate", "--json", "--data"}) words.emplace_back(word);
    std::ranges::rotate(words, words.end() - 3);
    words.insert(words.begin() + 3, file);
    const Outcome outcome = run_bellows(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json own =
      evaluate({"--run", run(), "--set", "data=" + file, "--set", "eval_data=" + digits() + "/test-000.tar"});
  EXPECT_EQ(own["samples"], 360) << "--data, although the recipe has other evaluation data";
  const Json bare = evaluate({"--model", "mlp", "--weights", checkpoint()});
  EXPECT_EQ(bare["samples"], 360);
  EXPECT_GT(bare["accuracy"].get<double>(), 0.5);
}

TEST_F(TrainedDigits, EvaluatePrintsATable) {
  const Outcome outcome = run_bellows({"evaluate", "--run", run()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(ContainsRegex("accuracy +[0-9.]+ %\n"), ContainsRegex("samples +359\n"),
                    ContainsRegex("samples/s +[0-9]+\n"), ContainsRegex("latency +median [0-9.]+ [um]s, 90 % below "),
                    ContainsRegex("weights size +[0-9]+ bytes")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("evaluate 359/359 samples"), Not(HasSubstr("\033"))));
}

TEST_F(TrainedDigits, EvaluateInBf16HalvesTheWeights) {
  const auto bytes = [&](const std::string& dtype) {
    return Json::parse(run_bellows({"evaluate", "--run", run(), "--dtype", dtype, "--json"}).out)["weight_bytes"]
        .get<int64_t>();
  };
  EXPECT_EQ(bytes("fp32"), 2 * bytes("bf16"));
}

TEST_F(TrainedDigits, WeightsThatDoNotFitGiveTheSameResults) {
  const std::vector<std::string> little = {"--weight-memory", "80KB", "--offload-folder", path("offloaded")};
  const auto with_little = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), little.begin(), little.end());
    return run_bellows(arguments);
  };
  const Json whole = Json::parse(run_bellows({"evaluate", "--run", run(), "--json"}).out);
  const Outcome first = with_little({"evaluate", "--run", run(), "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("wrote the weights of"));
  EXPECT_THAT(first.err, HasSubstr("of working memory"));
  const Json streamed = Json::parse(first.out);
  for (const char* key : {"loss", "accuracy", "step", "weights", "averaged", "weight_bytes"})
    EXPECT_EQ(streamed[key], whole[key]) << key;
  const Outcome second = with_little({"predict", "--run", run(), "--data", digits(), "--split", "test"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr("wrote the weights of"))) << "the file is used again";
  EXPECT_EQ(second.out, run_bellows({"predict", "--run", run(), "--data", digits(), "--split", "test"}).out);
}

TEST_F(TrainedDigits, ProblemsOfWeightMemoryAreNamed) {
  const auto expect_usage = [&](std::vector<std::string> options, const std::string& words) {
    options.insert(options.begin(), {"evaluate", "--run", run()});
    expect_failure(run_forked(options), 2, words);
  };
  expect_usage({"--weight-memory", "1MB"}, "Pass --offload-folder");
  expect_usage({"--offload-folder", path("offloaded")}, "--offload-folder is only used with --weight-memory");
  expect_usage({"--weight-memory", "1MB", "--offload-folder", path("offloaded"), "--compile"},
               "--compile cannot be combined with --weight-memory");
  expect_failure(
      run_bellows({"evaluate", "--run", run(), "--weight-memory", "1KB", "--offload-folder", path("offloaded")}), 1,
      "the budget for weights must be at least");
}

TEST_F(TrainedDigits, PredictGivesTheAccuracyOfTraining) {
  const Outcome outcome = run_bellows({"predict", "--run", run(), "--split", "test", "--top", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<Json> lines = lines_of(outcome.out);
  const std::vector<int64_t> labels = data::read_labels(*data::open(digits(), {.split = "test"}).source());
  ASSERT_EQ(lines.size(), labels.size());
  int64_t right = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["index"], i);
    right += lines[i]["prediction"] == std::to_string(labels[i]);
    ASSERT_EQ(lines[i]["top"].size(), 3u);
    EXPECT_EQ(lines[i]["top"][0], (Json::array({lines[i]["prediction"], lines[i]["probability"]})));
  }
  EXPECT_EQ(static_cast<double>(right) / static_cast<double>(labels.size()), accuracy());
}

TEST_F(TrainedDigits, PredictWritesAnOutputFileAtOnce) {
  const Outcome outcome = run_bellows({"predict", "--run", run(), "--split", "test", "--output", path("all.jsonl")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(lines_of(read_text_file(path("all.jsonl"))).size(), 359u);
  std::ofstream(path("kept.jsonl")) << "earlier";
  EXPECT_EQ(run_bellows({"predict", "--run", run(), "--split", "tset", "--output", path("kept.jsonl")}).exit_code, 1);
  EXPECT_EQ(read_text_file(path("kept.jsonl")), "earlier");
  expect_failure(run_bellows({"predict", "--run", "/nowhere", "x.png", "--output", "/nowhere/x"}), 1, "/nowhere/x");
}

TEST_F(TrainedDigits, PredictReportsBadFilesAndContinues) {
  const data::SourcePtr test = data::open(digits(), {.split = "test"}).source();
  const data::Sample sample = test->read(0);
  std::ofstream(path("good\xff.png")) << io::as_text(sample.find("png")->bytes);
  std::ofstream(path("bad.png")) << "junk";
  const Outcome outcome =
      run_bellows({"predict", "--run", run(), "/nowhere.png", path("good\xff.png"), path("bad.png")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("/nowhere.png"), HasSubstr("2 of 3 inputs could not be predicted")));
  const std::vector<Json> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["file"], "/nowhere.png");
  EXPECT_THAT(lines[0]["error"].get<std::string>(), HasSubstr("No such file"));
  EXPECT_TRUE(lines[1].contains("prediction"));
  EXPECT_FALSE(lines[1].contains("index"));
  EXPECT_THAT(lines[2]["error"].get<std::string>(), HasSubstr("expected a PNG or JPEG image"));
  const Json first = lines_of(run_bellows({"predict", "--run", run(), "--split", "test"}).out).front();
  EXPECT_EQ(lines[1]["prediction"], first["prediction"]);
}

TEST_F(TrainedDigits, ProblemsAreNamed) {
  const auto evaluate = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "evaluate");
    return run_forked(arguments);
  };
  expect_failure(evaluate({}), 2, "Pass --run, or --recipe (or --model) together with --weights");
  expect_failure(evaluate({"--run", run(), "--weights", "w.pt"}), 2, "--weights cannot be combined with --run");
  expect_failure(evaluate({"--recipe", run() + "/recipe.yaml"}), 2, "would have random weights. Set --weights");
  expect_failure(evaluate({"--run", "/nowhere"}), 1, "--run: there is no folder /nowhere");
  expect_failure(evaluate({"--run", digits()}), 1, "contains no recipe.yaml");
  expect_failure(evaluate({"--run", run(), "--split", "tset"}), 1, "Did you mean \"test\"?");
  expect_failure(evaluate({"--run", run(), "--dtype", "fp16"}), 2, "--dtype: expected fp32 or bf16, got fp16");
  expect_failure(evaluate({"--run", run(), "--set", "num_classes=12"}), 1, "does not fit the model \"mlp\"");
  expect_failure(evaluate({"--recipe", run() + "/recipe.yaml", "--weights", "/nowhere.pt"}), 1,
                 "--weights: /nowhere.pt");
  expect_failure(run_forked({"predict", "--run", run()}), 2, "Name FILES, or pass --data or --split");
  expect_failure(run_forked({"predict", "--run", run(), "x.png", "--split", "test"}), 2,
                 "FILES cannot be combined with --data or --split");
  expect_failure(run_forked({"predict", "--run", run(), "x.png", "--top", "0"}), 2, "--top");
}

TEST(PredictCommand, StopsWhileItReadsAPipe) {
  const Scratch folder;
  ASSERT_NO_FATAL_FAILURE(train_on_texts(folder));
  const std::string pipe = folder / "texts";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Process process({.arguments = {"predict", "--run", folder / "run", pipe, "--output", folder / "out.jsonl"}});
  const int writer = ::open(pipe.c_str(), O_WRONLY);  // waits until the command opens the pipe
  ASSERT_GE(writer, 0);
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  ::close(writer);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--output is not written"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.jsonl"));
  Process reads({.arguments = {"predict", "--run", folder / "run", pipe}});
  std::ofstream(pipe) << "word 1\nword 2\n";
  const Outcome texts = reads.finish();
  EXPECT_EQ(texts.exit_code, 0) << texts.err;
  EXPECT_EQ(lines_of(texts.out).size(), 2u);
  EXPECT_TRUE(lines_of(texts.out)[0]["prediction"].is_string() || lines_of(texts.out)[0]["prediction"].is_number());
}

}  // namespace bellows::cli
