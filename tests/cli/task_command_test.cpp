// Tasks beyond a class for each image, from the command line: train, resume, plan, compile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bellows/data/formats/webdataset.h"
#include "bellows/io/images/image.h"
#include "process.h"

namespace bellows::cli {
namespace {

using ::testing::HasSubstr;

constexpr int64_t samples = 40;

struct TaskCommand {
  const char* name;
  void (*write)(const std::string& path);
  const char* file;
  std::vector<std::string> arguments;
};

void PrintTo(const TaskCommand& one, std::ostream* out) {
  *out << one.name;
}

/// Params: fields – of sample i, by name
void write_tar(const std::string& path,
               const std::function<std::vector<std::pair<std::string, std::string>>(int64_t)>& fields) {
  const auto sink = data::webdataset_sink(path);
  for (int64_t i = 0; i < samples; ++i) {
    const auto files = fields(i);
    const std::string key = "s" + std::to_string(i);
    data::Sample sample;
    sample.id = i;
    sample.key = key;
    for (const auto& [name, content] : files)
      sample.fields.push_back({.name = name, .bytes = std::as_bytes(std::span(content))});
    sink->write(sample);
  }
  sink->close();
}

std::string png_of(const at::Tensor& pixels) {
  const auto bytes = io::encode_png(pixels);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

at::Tensor noise() {
  return torch::randint(0, 256, {8, 8, 1}, at::kByte);
}

void write_pairs(const std::string& path) {
  write_tar(path, [](int64_t i) -> std::vector<std::pair<std::string, std::string>> {
    const at::Tensor left = noise();
    return {{"left.png", png_of(left)}, {"right.png", png_of(i % 2 ? left : noise())}, {"cls", std::to_string(i % 2)}};
  });
}

void write_masks(const std::string& path) {
  write_tar(path, [](int64_t) -> std::vector<std::pair<std::string, std::string>> {
    const at::Tensor image = noise();
    return {{"png", png_of(image)}, {"mask.png", png_of(image.gt(127).to(at::kByte))}};
  });
}

void write_prices(const std::string& path) {
  std::ofstream file(path);
  file << "area,rooms,price\n";
  for (int64_t i = 0; i < samples; ++i) file << i << "," << i % 4 << "," << 0.1 * static_cast<double>(i) << "\n";
}

void write_tags(const std::string& path) {
  write_tar(path, [](int64_t i) -> std::vector<std::pair<std::string, std::string>> {
    return {{"png", png_of(noise())}, {"day", std::to_string(i % 2)}, {"indoor", std::to_string(i % 3 == 0)}};
  });
}

/// The tests of a task share a folder with its data, and with a run of two epochs.
class TaskCommands : public ::testing::TestWithParam<TaskCommand> {
 protected:
  static void TearDownTestSuite() { folders().clear(); }

  TaskCommands() {
    const auto [folder, is_new] = folders().try_emplace(GetParam().name);
    folder_ = &folder->second;
    if (is_new) GetParam().write(file());
  }
  std::string file() const { return *folder_ / GetParam().file; }
  std::vector<std::string> command(const std::string& verb, std::vector<std::string> more) const {
    std::vector<std::string> all{verb, "--plugin", BELLOWS_BIN_DIR "/test_plugin.so"};
    all.insert(all.end(), GetParam().arguments.begin(), GetParam().arguments.end());
    for (const std::string& key : {"data=" + file(), std::string("eval_split=0.2")})
      all.insert(all.end(), {"--set", key});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string run() const { return *folder_ / "run"; }
  /// Trains unless an earlier test has. Returns the JSON result.
  nlohmann::json trained() const {
    const std::string result = *folder_ / "run.json";
    if (!std::filesystem::exists(result)) {
      const Outcome outcome = run_bellows(command("train", {"--set", "epochs=2", "--out", run(), "--json", result}));
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    return nlohmann::json::parse(std::ifstream(result));
  }

 private:
  static std::map<std::string, Scratch>& folders() {
    static std::map<std::string, Scratch> all;
    return all;
  }

  const Scratch* folder_ = nullptr;
};

TEST_P(TaskCommands, TrainsAndResumes) {
  const auto json = trained();
  EXPECT_EQ(json["epochs"].size(), 2u);
  const Scratch copy;
  std::filesystem::copy(run(), copy / "run", std::filesystem::copy_options::recursive);
  const Outcome again = run_bellows({"train", "--plugin", BELLOWS_BIN_DIR "/test_plugin.so", "--out", copy / "run",
                                     "--resume", "--set", "epochs=3", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto resumed = nlohmann::json::parse(again.out);
  EXPECT_EQ(resumed["epochs"].size(), 3u);
  EXPECT_EQ(resumed["epochs"][1]["eval_loss"], json["epochs"][1]["eval_loss"]);
  EXPECT_EQ(resumed["epochs"][1].value("metrics", nlohmann::json()),
            json["epochs"][1].value("metrics", nlohmann::json()));
}

TEST_P(TaskCommands, IsCompiled) {
  const Outcome outcome = run_bellows(command("train", {"--set", "epochs=2", "--set", "compile=step", "--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(nlohmann::json::parse(outcome.out)["eval_loss"].is_number());
}

TEST_P(TaskCommands, IsPlanned) {
  const Outcome outcome = run_bellows(command("plan", {"--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(nlohmann::json::accept(outcome.out));
}

/// Params: output – output of `bellows predict` for all samples
void expect_predictions(const std::string& output, const std::string& task) {
  std::istringstream lines(output);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["index"], count);
    EXPECT_EQ(json.value("values", nlohmann::json::array()).size(), task == "regression" ? 1u : 0u) << line;
    EXPECT_EQ(json.value("probabilities", nlohmann::json::object()).size(), task == "multi_label" ? 2u : 0u) << line;
    EXPECT_EQ(json.contains("probability"), task == "siamese") << line;
  }
  EXPECT_EQ(count, samples);
}

TEST_P(TaskCommands, IsEvaluatedAndPredicted) {
  const auto during = trained()["epochs"][1];
  const std::vector<std::string> options_of_run{"--plugin", BELLOWS_BIN_DIR "/test_plugin.so", "--run", run()};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), options_of_run.begin(), options_of_run.end());
    words.insert(words.end(), more.begin(), more.end());
    return run_bellows(words);
  };
  const bool pixels = std::string(GetParam().name) == "segmentation";
  for (const char* compile : {"", "--compile"}) {
    if (pixels && *compile) continue;  // slow, and the other models are compiled
    std::vector<std::string> options{"--json"};
    if (*compile) options.emplace_back(compile);
    const Outcome outcome = with({"evaluate"}, options);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto after = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(after["samples"], 8);
    const double loss = during["eval_loss"].get<double>();
    EXPECT_NEAR(after["loss"].get<double>(), loss, *compile ? 1e-3 * loss : 0);
    if (!*compile) {
      EXPECT_EQ(after["metrics"], during.value("metrics", nlohmann::json::object()));
    }
  }
  const Outcome predicted = with({"predict"}, {"--data", file()});
  if (pixels) {
    EXPECT_EQ(predicted.exit_code, 1);
    EXPECT_THAT(predicted.err, HasSubstr("predicts a class for each pixel"));
    return;
  }
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  expect_predictions(predicted.out, GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(All, TaskCommands,
                         ::testing::Values(TaskCommand{"siamese", write_pairs, "pairs.tar", {"--model", "siamese"}},
                                           TaskCommand{"regression",
                                                       write_prices,
                                                       "prices.csv",
                                                       {"--model", "tabular_mlp", "--set", "target=price", "--set",
                                                        "loss=mse"}},
                                           TaskCommand{"multi_label",
                                                       write_tags,
                                                       "tags.tar",
                                                       {"--model", "plugin_net", "--set", "target=day,indoor", "--set",
                                                        "loss=bce", "--set", "image_size=8"}},
                                           TaskCommand{"segmentation",
                                                       write_masks,
                                                       "masks.tar",
                                                       {"--model", "unet", "--set", "target=mask.png", "--set",
                                                        "num_classes=2", "--set", "image_size=16"}}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TaskCommand, TwoRanksMeasureWhatOneDoes) {
  const Scratch folder;
  write_prices(folder / "prices.csv");
  const auto measured = [&](std::vector<std::string> command, const std::string& json) {
    for (const char* word : {"train", "--model", "tabular_mlp", "--set", "target=price", "--set", "loss=mse", "--set",
                             "eval_split=0.2", "--set", "epochs=2"})
      command.emplace_back(word);
    command.insert(command.end(), {"--data", folder / "prices.csv", "--json", json});
    const Outcome outcome = run_bellows(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::ifstream file(json);
    return nlohmann::json::parse(file);
  };
  const auto one = measured({}, folder / "one.json");
  const auto two = measured({"launch", "-n", "2", "--", BELLOWS_BIN_DIR "/bellows"}, folder / "two.json");
  // Two ranks add up in another order; six steps in fp32 keep five digits.
  EXPECT_NEAR(one["eval_loss"].get<double>(), two["eval_loss"].get<double>(), 1e-5 * one["eval_loss"].get<double>());
  for (const auto& [name, value] : one["metrics"].items())
    EXPECT_NEAR(value.get<double>(), two["metrics"][name].get<double>(), 1e-4) << name;
}

TEST(TaskCommand, PrintsTheMetricsOfTheTask) {
  const Scratch folder;
  write_prices(folder / "prices.csv");
  const Outcome outcome =
      run_bellows({"train", "--data", folder / "prices.csv", "--model", "tabular_mlp", "--set", "target=price", "--set",
                   "loss=mse", "--set", "eval_split=0.2", "--set", "epochs=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("loss [0-9.]+, mae [0-9.]+, r2 -?[0-9.]+"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace bellows::cli
