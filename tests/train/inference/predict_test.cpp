// Predictions for files and datasets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/data/order/labels.h"
#include "bellows/io/images/image.h"
#include "bellows/system/stop.h"
#include "bellows/train/inference/model_evaluation.h"
#include "tests/support/captured_log.h"
#include "tests/train/inference/support.h"

namespace bellows::train {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A model that was trained on the digits.
class PredictDigits : public TrainedSuite<PredictDigits> {
 public:
  static Recipe recipe(const TemporaryFolder& folder) {
    Recipe recipe = small_run(folder);
    recipe.data = digits_folder();
    recipe.eval_data.clear();
    recipe.epochs = 1;
    return recipe;
  }
};

std::vector<int64_t> classes_of(const std::vector<Prediction>& predictions) {
  std::vector<int64_t> classes;
  for (const Prediction& one : predictions) classes.push_back(one.top.empty() ? -1 : one.top.front().first);
  return classes;
}

double share_right(const std::vector<int64_t>& predicted, const std::vector<int64_t>& labels) {
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) right += predicted.at(i) == labels[i];
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

/// Trains the folder's config.json on its train.jsonl, whose bytes are the tokens.
Recipe bytes_recipe(const TemporaryFolder& folder) {
  Recipe recipe;
  recipe.model = folder / "config.json";
  recipe.data = folder / "train.jsonl";
  recipe.tokenizer = "bytes";
  recipe.eval_split = "0.2";
  recipe.epochs = 1;
  recipe.num_workers = 0;
  recipe.run_folder = folder / "run";
  return recipe;
}

}  // namespace

TEST_F(PredictDigits, GiveTheAccuracyOfTheEvaluation) {
  const std::vector<Prediction> all = all_predictions(trained(), open_prediction_data(trained(), "", "test"));
  ASSERT_EQ(all.size(), 359u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].index, static_cast<int64_t>(i));
  const std::vector<int64_t> labels = data::read_labels(*data::open(digits_folder(), {.split = "test"}).source());
  EXPECT_EQ(share_right(classes_of(all), labels), evaluate(trained()).evaluation.accuracy);
  EXPECT_EQ(prediction_names(trained()).at(3), "3");
}

TEST_F(PredictDigits, FilesGiveThePredictionsOfTheDataset) {
  const std::vector<std::string> paths = write_test_images(path("images"), 64);  // two full batches
  const std::vector<Prediction> expected =
      all_predictions(trained(), open_prediction_data(trained(), digits_folder(), "test"), {.top = 10});
  const std::vector<Prediction> files =
      all_predictions(trained(), open_prediction_files(trained(), paths), {.top = 10});
  ASSERT_EQ(files.size(), 64u);
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].top, expected[i].top) << i;
    EXPECT_EQ(files[i].file, paths[i]);
    EXPECT_EQ(files[i].index, -1);
  }
}

TEST_F(PredictDigits, FoldersAreListedByPath) {
  std::vector<std::string> first = write_test_images(path("listed/b"), 5);
  std::ranges::sort(first);
  std::filesystem::copy(first.front(), path("listed/a.png"));
  write_text_file(path("listed/notes.txt"), "no image");
  const PredictionInputs inputs = open_prediction_files(trained(), {path("listed")});
  EXPECT_EQ(inputs.size(), 6);
  EXPECT_EQ(inputs.parts[0].file, path("listed/a.png"));
  EXPECT_EQ(inputs.parts[1].file, first[0]);
}

TEST_F(PredictDigits, TopClassesAreSortedProbabilities) {
  for (const Prediction& one : all_predictions(trained(), open_prediction_data(trained(), "", "test"), {.top = 20})) {
    ASSERT_EQ(one.top.size(), 10u) << "at most the number of classes";
    double sum = 0;
    for (size_t k = 0; k < 10; ++k) {
      sum += one.top[k].second;
      EXPECT_LE(one.top[k].second, one.top[k > 0 ? k - 1 : 0].second);
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

TEST_F(PredictDigits, BadFilesKeepTheirPlace) {
  const std::vector<std::string> good = write_test_images(path("some"), 2);
  write_text_file(path("junk.png"), "junk");
  const CapturedLog log;
  const std::vector<std::string> files = {"/nowhere/first.png", good[0], path("junk.png"),
                                          path("empty_folder"), good[1], path("junk.png")};
  std::filesystem::create_directory(path("empty_folder"));
  for (const int64_t batch : {1, 2, 16}) {
    std::vector<Prediction> all;
    const PredictionCounts counts = predict(trained(), open_prediction_files(trained(), files), {.batch_size = batch},
                                            [&](const Prediction& one) { all.push_back(one); });
    EXPECT_EQ(counts.predicted, 2);
    EXPECT_EQ(counts.failed, 4);
    ASSERT_EQ(all.size(), files.size());
    for (size_t i = 0; i < files.size(); ++i) EXPECT_EQ(all[i].file, files[i]);
    EXPECT_THAT(all[0].error, HasSubstr("/nowhere/first.png"));
    EXPECT_THAT(all[2].error, HasSubstr("expected a PNG or JPEG image"));
    EXPECT_THAT(all[3].error, HasSubstr("folder without .jpg, .jpeg or .png"));
    EXPECT_EQ(all[5].error.empty(), false);
    EXPECT_TRUE(all[1].error.empty() && all[4].error.empty());
    const std::vector<Prediction> alone = all_predictions(trained(), open_prediction_files(trained(), {good[0]}));
    EXPECT_EQ(all[1].top.front().first, alone[0].top.front().first);
  }
}

TEST_F(PredictDigits, OnlyBadFiles) {
  write_text_file(path("junk.png"), "junk");
  const CapturedLog log;
  const std::vector<Prediction> all =
      all_predictions(trained(), open_prediction_files(trained(), {path("junk.png"), "/nowhere.png"}));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0].error, HasSubstr("expected a PNG or JPEG image"));
  EXPECT_THAT(all[1].error, HasSubstr("/nowhere.png"));
  EXPECT_THAT(log.text(), HasSubstr("/nowhere.png"));
  EXPECT_THAT(error_of([] { open_prediction_files(trained(), {}); }), HasSubstr("at least one file, got none"));
}

TEST_F(PredictDigits, ImagesOfOtherSizesAreScaledToTheTrainingSize) {
  const std::vector<std::string> good = write_test_images(path("sized"), 1);
  const std::string bytes = read_text_file(good[0]);
  const at::Tensor small = io::decode_image(std::as_bytes(std::span(bytes)), io::ColorMode::gray);
  const at::Tensor large = small.repeat_interleave(4, 0).repeat_interleave(4, 1).contiguous();
  const auto png = io::encode_png(large);
  write_text_file(path("large.png"), {reinterpret_cast<const char*>(png.data()), png.size()});
  const std::vector<Prediction> all =
      all_predictions(trained(), open_prediction_files(trained(), {good[0], path("large.png")}));
  EXPECT_EQ(all[1].error, "");
  EXPECT_EQ(all[1].top.front().first, all[0].top.front().first);
}

TEST_F(PredictDigits, CompiledPredictionsAreClose) {
  const PredictionInputs inputs = open_prediction_data(trained(), "", "test");
  const auto plain = all_predictions(trained(), inputs),
             compiled = all_predictions(trained(), inputs, {.compile = true});
  ASSERT_EQ(plain.size(), compiled.size());
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_NEAR(plain[i].top.front().second, compiled[i].top.front().second, 1e-4) << i;
}

TEST_F(PredictDigits, ModelsThatReturnNaNGiveErrors) {
  TrainedModel broken = trained();
  broken.model = Model::of(torch::nn::Functional([](const at::Tensor& x) {
                             at::Tensor logits = torch::zeros({x.size(0), 10});
                             logits[0][4] = std::nan("");
                             return logits;
                           }),
                           "broken");
  const auto all = all_predictions(broken, open_prediction_data(broken, "", "test"), {.batch_size = 359});
  EXPECT_THAT(all[0].error, HasSubstr("NaN"));
  EXPECT_EQ(all[1].error, "");
}

TEST_F(PredictDigits, StopOnRequest) {
  const PredictionInputs inputs = open_prediction_data(trained(), "", "test");
  int64_t seen = 0;
  const auto stop_early = [&](const Prediction&) {
    if (++seen == 1) request_stop();
  };
  EXPECT_THROW(predict(trained(), inputs, {.batch_size = 16}, stop_early), Stopped);
  clear_stop();
  EXPECT_EQ(seen, 16) << "one batch";
}

TEST(Predict, HeldOutSamplesHaveTheirPositionsInTheData) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.eval_data.clear();
  recipe.eval_split = "0.1";
  recipe.epochs = 1;
  Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  const std::vector<Prediction> all = all_predictions(trained, open_prediction_data(trained, "", ""));
  const std::vector<int64_t>& held_out = trained.job.split().held_out;
  ASSERT_EQ(all.size(), held_out.size());
  const std::vector<int64_t> labels = data::read_labels(*trained.job.split().whole.subset(held_out).source());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].index, held_out[i]);
  EXPECT_EQ(share_right(classes_of(all), labels), evaluate(trained).evaluation.accuracy);
}

TEST(Predict, WithoutATrainingDataset) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  Trainer(recipe).fit();
  const std::vector<std::string> images = write_test_images(folder / "images", 1);
  const TrainedModel trained = load_run(recipe.run_folder);
  io::save_safetensors(folder / "w.safetensors", trained.model.state_dict());
  Recipe bare;
  bare.model = "mlp";
  EXPECT_THAT(error_of([&] { load_trained(bare, folder / "w.safetensors"); }), HasSubstr("Set num_classes"));
  bare.num_classes = 10;
  const CapturedLog log;
  const TrainedModel alone = load_trained(bare, folder / "w.safetensors");
  EXPECT_THAT(log.text(), HasSubstr("not normalized"));
  const auto all = all_predictions(alone, open_prediction_files(alone, {images[0]}));
  EXPECT_EQ(all[0].error, "");
  EXPECT_TRUE(prediction_names(alone).empty());
}

TEST(Predict, NumbersOfATable) {
  const TemporaryFolder folder;
  std::string rows = "area,rooms,price\n", other_order = "id,rooms,area\n", incomplete = "id,rooms\n1,2\n";
  for (int i = 0; i < 60; ++i) {
    rows += c10::str(i / 60.0, ",", i % 5 / 5.0, ",", 3 * i / 60.0 - i % 5 / 5.0, "\n");
    other_order += c10::str(i, ",", i % 5 / 5.0, ",", i / 60.0, "\n");
  }
  write_text_file(folder / "prices.csv", rows);
  write_text_file(folder / "other.csv", other_order);
  write_text_file(folder / "incomplete.csv", incomplete);
  Recipe recipe;
  recipe.model = "tabular_mlp";
  recipe.data = folder / "prices.csv";
  recipe.target = "price";
  recipe.loss = "mse";
  recipe.eval_split = "0.2";
  recipe.epochs = 2;
  recipe.num_workers = 0;
  recipe.run_folder = folder / "run";
  Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  const auto own = all_predictions(trained, open_prediction_data(trained, folder / "prices.csv", ""));
  const auto other = all_predictions(trained, open_prediction_files(trained, {folder / "other.csv"}));
  ASSERT_EQ(own.size(), 60u);
  ASSERT_EQ(other.size(), 60u);
  for (size_t i = 0; i < own.size(); ++i) {
    ASSERT_EQ(own[i].values.size(), 1u);
    EXPECT_EQ(own[i].values, other[i].values) << "the columns are found by name, and the target may be missing";
    EXPECT_EQ(other[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(other[i].file, folder / "other.csv");
  }
  const CapturedLog log;
  const auto missing =
      all_predictions(trained, open_prediction_files(trained, {folder / "incomplete.csv", folder / "other.csv"}));
  ASSERT_EQ(missing.size(), 61u);
  EXPECT_THAT(missing[0].error, HasSubstr("area"));
  EXPECT_EQ(missing[1].values, own[0].values);
}

TEST(Predict, LinesOfText) {
  const TemporaryFolder folder;
  std::string rows;
  for (int i = 0; i < 40; ++i)
    rows += c10::str(R"({"text": "word )", i, R"(", "label": ")", i % 2 ? "odd" : "even", "\"}\n");
  write_text_file(folder / "train.jsonl", rows);
  write_text_file(folder / "lines.txt", "word 1\r\n\nword 2");
  write_text_file(folder / "more.jsonl", "{\"text\": \"word 2\"}\n");
  write_text_file(folder / "config.json",
                  R"({"model_type": "bert", "vocab_size": 259, "hidden_size": 16, "num_hidden_layers": 1,
                      "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40})");
  const Recipe recipe = bytes_recipe(folder);
  Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  EXPECT_THAT(prediction_names(trained), ElementsAre("even", "odd"));
  const CapturedLog log;
  const auto all = all_predictions(
      trained, open_prediction_files(trained, {folder / "lines.txt", folder / "none.txt", folder / "more.jsonl"}));
  ASSERT_EQ(all.size(), 5u);
  for (const size_t i : {0, 1, 2}) EXPECT_EQ(all[i].index, static_cast<int64_t>(i));
  for (const size_t i : {0, 2, 4}) ASSERT_EQ(all[i].error, "") << i;
  EXPECT_THAT(all[3].error, HasSubstr("none.txt"));
  EXPECT_EQ(all[2].top.front().first, all[4].top.front().first);
  EXPECT_NEAR(all[2].top.front().second, all[4].top.front().second, 1e-6);
  const auto held_out = all_predictions(trained, open_prediction_data(trained, "", ""));
  EXPECT_EQ(held_out.size(), 8u);
}

TEST(Predict, RefusesModelsThatPredictTokens) {
  const TemporaryFolder folder;
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += c10::str("{\"text\": \"word ", i, "\"}\n");
  write_text_file(folder / "train.jsonl", rows);
  write_text_file(
      folder / "config.json",
      R"({"model_type": "gpt2", "vocab_size": 259, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32})");
  const Recipe recipe = bytes_recipe(folder);
  const FitResult result = Trainer(recipe).fit();
  const TrainedModel trained = load_run(recipe.run_folder);
  EXPECT_EQ(evaluate(trained).evaluation.loss, result.evaluation->loss);
  EXPECT_EQ(evaluate(trained).evaluation.samples, result.evaluation->samples);
  EXPECT_THAT(error_of([&] { all_predictions(trained, open_prediction_data(trained, "", "")); }),
              HasSubstr("predicts tokens"));
}

}  // namespace bellows::train
