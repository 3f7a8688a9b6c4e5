// `bellows quantize`, and the files that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "failure.h"
#include "forked.h"
#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// One epoch of an MLP on the digits.
class QuantizedDigits : public TrainedMlp<QuantizedDigits> {};

/// The same with quantization-aware training.
class QuantizationAwareDigits : public TrainedFolder<QuantizationAwareDigits> {
 public:
  static std::vector<std::string> settings() { return {"--model", "mlp", "--set", "quantize=int8"}; }

 protected:
  static Json quantized(const std::vector<std::string>& options, std::string& text) {
    const std::string file = path("quantized.json");
    std::vector<std::string> all{"quantize", "--run", run(), "--json", file};
    all.insert(all.end(), options.begin(), options.end());
    const Outcome outcome = run_bellows(all);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    text = outcome.out + outcome.err;
    std::ifstream in(file);
    return Json::parse(in);
  }
};

}  // namespace

TEST_F(QuantizedDigits, SavesAModelThatEvaluates) {
  const std::string file = path("int8.safetensors"), page = path("layers.html"), result_file = path("result.json");
  const Outcome outcome = run_bellows(
      {"quantize", "--run", run(), "--samples", "64", "--out", file, "--html", page, "--json", result_file});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("original"), HasSubstr("points"), HasSubstr("Saved " + file)));
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  std::ifstream in(result_file);
  const Json result = Json::parse(in);
  EXPECT_EQ(result["calibration_samples"], 64);
  EXPECT_LT(result["after"]["weight_bytes"].get<double>(), 0.3 * result["before"]["weight_bytes"].get<double>());
  EXPECT_TRUE(std::filesystem::exists(page));
  const Outcome evaluated = run_bellows({"evaluate", "--recipe", run() + "/recipe.yaml", "--weights", file, "--json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["accuracy"], result["after"]["accuracy"]);
}

TEST_F(QuantizedDigits, ALossOfZeroPointsIsAGoal) {
  const Outcome outcome = run_bellows({"quantize", "--run", run(), "--samples", "64", "--max-drop", "0", "--json"});
  EXPECT_NE(outcome.exit_code, 2) << outcome.err;
  if (outcome.exit_code == 0) {
    const Json result = Json::parse(outcome.out);
    EXPECT_GE(result["after"]["accuracy"], result["before"]["accuracy"]);
    EXPECT_EQ(result["ranges"], "calibration");
    EXPECT_TRUE(result["warnings"].empty());
  } else {
    EXPECT_THAT(outcome.err, HasSubstr("the accuracy falls by"));
  }
}

TEST_F(QuantizationAwareDigits, StatesTheOriginOfTheRanges) {
  std::string text;
  const Json plain = quantized({}, text);
  EXPECT_EQ(plain["ranges"], "training");
  EXPECT_TRUE(plain["warnings"].empty());
  EXPECT_THAT(text, HasSubstr("Ranges of activations: from quantization-aware training."));
  const Json with_samples = quantized({"--samples", "32"}, text);
  EXPECT_EQ(with_samples["ranges"], "training");
  EXPECT_EQ(with_samples["after"]["loss"], plain["after"]["loss"]);
  ASSERT_EQ(with_samples["warnings"].size(), 1u);
  EXPECT_THAT(with_samples["warnings"][0].get<std::string>(), HasSubstr("--samples has no effect"));
  EXPECT_THAT(text, HasSubstr("--samples has no effect"));
  for (const std::string rule : {"min_max", "percentile"}) {
    const Json with_range = quantized({"--samples", "32", "--range", rule}, text);
    EXPECT_EQ(with_range["ranges"], "calibration");
    EXPECT_NE(with_range["after"]["loss"], plain["after"]["loss"]);
    ASSERT_EQ(with_range["warnings"].size(), 1u);
    EXPECT_THAT(text, AllOf(HasSubstr("Ranges of activations: " + rule + " of 32 training samples."),
                            HasSubstr("the ranges from training are not used")));
  }
}

TEST(QuantizedTexts, EmbeddingsCanStayInFloatingPoint) {
  const Scratch folder;
  ASSERT_NO_FATAL_FAILURE(train_on_texts(folder));
  const auto quantized = [&](const std::vector<std::string>& options) {
    const std::string file = folder / "int8.safetensors";
    std::vector<std::string> all{"quantize", "--run", folder / "run", "--data", folder / "train.jsonl",
                                 "--out",    file,    "--json"};
    all.insert(all.end(), options.begin(), options.end());
    const Outcome outcome = run_bellows(all);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const Outcome evaluated = run_bellows({"evaluate", "--recipe", folder / "run/recipe.yaml", "--weights", file,
                                           "--data", folder / "train.jsonl", "--json"});
    EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
    int64_t embeddings = 0;
    const Json result = Json::parse(outcome.out);
    for (const Json& layer : result["layers"]) embeddings += layer["kind"] == "embedding";
    return embeddings;
  };
  EXPECT_EQ(quantized({}), 3);
  EXPECT_EQ(quantized({"--no-embeddings"}), 0);
}

TEST_F(QuantizedDigits, Problems) {
  const auto problem = [](const std::vector<std::string>& arguments, int exit_code, const std::string& words) {
    std::vector<std::string> all{"quantize"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    expect_failure(exit_code == 2 ? run_forked(all) : run_bellows(all), exit_code, words);
  };
  problem({"--run", run(), "--bits", "4"}, 2, "--bits and --group require --method weight-only.");
  problem({"--run", run(), "--rounding", "awq"}, 2, "--rounding awq requires --method weight-only.");
  problem({"--run", run(), "--method", "int8"}, 2, "expected one of static, dynamic, weight-only, got int8");
  problem({"--run", run(), "--method", "dynamic", "--range", "mse"}, 2, "--range requires --method static.");
  problem({"--run", run(), "--max-drop", "-0.5"}, 2,
          "expected a number of points from 0 to 100, such as 0.5, got -0.5");
  problem({"--run", path("none")}, 1, "there is no folder");
  problem({"--run", run(), "--skip", "*"}, 1, "no layer of the model can be quantized");
  problem({}, 2, "expected a trained model");
}

}  // namespace bellows::cli
