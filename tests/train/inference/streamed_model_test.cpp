// Trained models whose weights do not fit into memory give the results of the same models in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bellows/checkpoint/folder.h"
#include "bellows/core/grad_mode.h"
#include "bellows/models/config.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/inference/streamed_model.h"
#include "tests/support/errors.h"
#include "tests/train/inference/support.h"

namespace bellows::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Half of the weights, at least the largest module.
int64_t half_of(const Model& model) {
  int64_t bytes = 0, largest = 0;
  for (const auto& module : parallel::infer_device_map(model, {.device_bytes = int64_t{1} << 40}).modules) {
    bytes += module.bytes;
    largest = std::max(largest, module.bytes);
  }
  return std::max(bytes / 2, largest);
}

int64_t files_in(const std::string& folder) {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

void expect_same_evaluation(const std::vector<std::string>& settings) {
  SCOPED_TRACE(::testing::PrintToString(settings));
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.epochs = 1;
  for (const std::string& item : settings) recipe.set(item);
  Trainer(recipe).fit();
  const Recipe of_run = recipe_of_run(recipe.run_folder);
  const TrainedModel resident = load_run(recipe.run_folder, of_run);
  const ModelEvaluation expected = evaluate(resident);
  const WeightMemory memory{.bytes = half_of(resident.model), .folder = folder / "offloaded"};
  for (int attempt = 0; attempt < 2; ++attempt) {
    const StreamedModel streamed = load_streamed_run(recipe.run_folder, of_run, memory);
    const ModelEvaluation actual = evaluate(streamed.trained);
    EXPECT_EQ(actual.evaluation.loss, expected.evaluation.loss);
    EXPECT_EQ(actual.evaluation.accuracy, expected.evaluation.accuracy);
    EXPECT_EQ(actual.weight_bytes, expected.weight_bytes);
    EXPECT_EQ(streamed.trained.step, resident.step);
    EXPECT_EQ(streamed.trained.averaged, resident.averaged);
    EXPECT_EQ(streamed.trained.weights, resident.weights);
    EXPECT_GT(streamed.weights->counters().loads, 0);
    EXPECT_LE(streamed.weights->counters().peak_bytes, memory.bytes);
  }
  EXPECT_EQ(files_in(memory.folder), 1) << "the second call uses the file of the first one";
}

TEST(StreamedModel, EvaluationsEqualThoseInMemory) {
  expect_same_evaluation({"model=mlp"});
  expect_same_evaluation({"model=digits_resnet", "ema_decay=0.9", "channels_last=true"});
  expect_same_evaluation({"model=mlp", "precision=bf16", "amp_level=O2"});
  expect_same_evaluation({"model=mlp", "precision=bf16", "amp_level=O1"});
}

TEST(StreamedModel, AnUnreadableCheckpointDoesNotNameTheWeightsOfThePreviousOne) {
  const TemporaryFolder folder;
  const Recipe recipe = small_run(folder);
  Trainer(recipe).fit();
  const std::vector<std::string> checkpoints = checkpoint::list_checkpoints(recipe.run_folder);
  ASSERT_GE(checkpoints.size(), 2u);
  const std::string& newest = checkpoints.back();
  std::filesystem::rename(newest, folder / "newest");
  std::ofstream(newest) << "damaged";
  const Recipe of_run = recipe_of_run(recipe.run_folder);
  const WeightMemory memory{.bytes = int64_t{1} << 30, .folder = folder / "offloaded"};
  const StreamedModel previous = load_streamed_run(recipe.run_folder, of_run, memory);
  EXPECT_EQ(previous.trained.weights, checkpoints[checkpoints.size() - 2]);
  EXPECT_EQ(load_streamed_run(recipe.run_folder, of_run, memory).file, previous.file);
  std::filesystem::remove(newest);
  EXPECT_EQ(load_streamed_run(recipe.run_folder, of_run, memory).file, previous.file)
      << "the name is that of the checkpoint whose weights the file has";
  std::filesystem::rename(folder / "newest", newest);
  const StreamedModel restored = load_streamed_run(recipe.run_folder, of_run, memory);
  EXPECT_EQ(restored.trained.weights, newest);
  EXPECT_NE(restored.file, previous.file);
}

TEST(StreamedModel, SafetensorsFilesAreReadDirectlyAndPredictTheSame) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.epochs = 1;
  Trainer(recipe).fit();
  const TrainedModel resident = load_run(recipe.run_folder);
  io::save_safetensors(folder / "mlp.safetensors", resident.model.state_dict());
  const StreamedModel streamed =
      load_streamed(recipe_of_run(recipe.run_folder), folder / "mlp.safetensors", {.bytes = half_of(resident.model)});
  EXPECT_EQ(streamed.file, folder / "mlp.safetensors");
  const std::vector<std::string> images = write_test_images(folder / "images", 20);
  const auto predictions = [&](const TrainedModel& trained) {
    return all_predictions(trained, open_prediction_files(trained, images), {.batch_size = 7, .top = 3});
  };
  const std::vector<Prediction> expected = predictions(resident), actual = predictions(streamed.trained);
  ASSERT_EQ(actual.size(), 20u);
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_EQ(actual[i].top, expected[i].top);
}

TEST(StreamedModel, FilesOfHuggingFaceKeepTheirNames) {
  const TemporaryFolder folder;
  write_text_file(folder / "config.json",
                  R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 61, "n_positions": 16,
                      "n_embd": 32, "n_layer": 4, "n_head": 2})");
  const models::ModelEntry entry = models::model_entry(folder / "config.json");
  const Model resident = entry.make(1, 61);
  resident.eval();
  NamedTensors tensors;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : resident.state_dict()) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    std::string base = name;
    if (base.starts_with("transformer.")) base = base.substr(12);
    tensors.emplace_back(base, tensor.detach());
  }
  for (int layer = 0; layer < 4; ++layer)
    tensors.emplace_back(c10::str("h.", layer, ".attn.bias"), at::ones({1, 1, 16, 16}));
  io::save_safetensors(folder / "model.safetensors", tensors);
  Recipe recipe;
  recipe.model = folder / "config.json";
  const StreamedModel streamed = load_streamed(recipe, folder / "model.safetensors", {.bytes = half_of(resident)});
  const at::Tensor ids = at::arange(14).view({2, 7});
  const inference_mode no_graph;
  EXPECT_TRUE(at::equal(streamed.trained.model.forward(ids), resident.forward(ids)));
  EXPECT_GT(streamed.weights->counters().loads, 0);
}

TEST(StreamedModel, ProblemsAreExplained) {
  const TemporaryFolder folder;
  Recipe recipe = small_run(folder);
  recipe.epochs = 1;
  Trainer(recipe).fit();
  const Recipe of_run = recipe_of_run(recipe.run_folder);
  const auto of = [&](const WeightMemory& memory) {
    return message_of([&] { load_streamed_run(recipe.run_folder, of_run, memory); });
  };
  EXPECT_THAT(of({.bytes = 1 << 20}), HasSubstr("can be streamed only from a safetensors file. Set a folder"));
  EXPECT_THAT(of({.bytes = 0, .folder = folder / "f"}), HasSubstr("expected a budget of at least 1 byte, got 0"));
  EXPECT_THAT(
      of({.bytes = 100, .folder = folder / "f"}),
      AllOf(HasSubstr("the memory for the weights is too small"), HasSubstr("the budget for weights must be at least"),
            Not(HasSubstr("`weights`:")), Not(HasSubstr("keep_together"))));
  std::ofstream(folder / "file") << "no folder";
  EXPECT_THAT(of({.bytes = 1 << 20, .folder = folder / "file/f"}), HasSubstr("cannot create the folder"));
  Recipe script = of_run;
  script.model = folder / "net.pt";
  EXPECT_THAT(message_of([&] { load_streamed(script, folder / "w.safetensors", {.bytes = 1}); }),
              HasSubstr("is a file that contains its weights"));
  NamedTensors tensors = load_run(recipe.run_folder).model.state_dict();
  tensors.emplace_back("other.weight", at::zeros({3}));
  tensors.erase(tensors.begin());
  io::save_safetensors(folder / "other.safetensors", tensors);
  EXPECT_THAT(message_of([&] { load_streamed(of_run, folder / "other.safetensors", {.bytes = 1 << 20}); }),
              AllOf(HasSubstr("other.safetensors"), HasSubstr("other.weight")));
}

}  // namespace
}  // namespace bellows::train
