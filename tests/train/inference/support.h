#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/source.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"
#include "bellows/train/data/data_split.h"
#include "bellows/train/inference/prediction.h"
#include "tests/train/support.h"

namespace bellows::train {

/// A small run on the digits: a model without random parts, two epochs, one checkpoint at the end of each.
inline Recipe small_run(const TemporaryFolder& folder) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.epochs = 2;
  recipe.run_folder = folder / "run";
  return recipe;
}

/// Tests of one model, which is trained before the first test. `Suite::recipe(folder)` describes the training run.
template <class Suite>
class TrainedSuite : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    const Recipe recipe = Suite::recipe(*folder_);
    Trainer(recipe).fit();
    trained_.emplace(load_run(recipe.run_folder));
  }
  static void TearDownTestSuite() {
    trained_.reset();
    folder_.reset();
  }
  static const TrainedModel& trained() { return *trained_; }
  static std::string path(const std::string& name) { return *folder_ / name; }

 private:
  static inline std::unique_ptr<TemporaryFolder> folder_;
  static inline std::optional<TrainedModel> trained_;
};

inline std::vector<Prediction> all_predictions(const TrainedModel& trained, const PredictionInputs& inputs,
                                               const PredictionOptions& options = {}) {
  std::vector<Prediction> all;
  predict(trained, inputs, options, [&](const Prediction& one) { all.push_back(one); });
  return all;
}

/// Writes the first images of the digits' test shard as single files NAME.png, and returns their paths in the order of
/// the shard.
inline std::vector<std::string> write_test_images(const std::string& folder, int64_t count) {
  std::filesystem::create_directories(folder);
  const data::SourcePtr source = data::open(digits_folder() + "/test-000.tar").source();
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) {
    const data::Sample sample = source->read(i);
    const data::Field* png = sample.find("png");
    paths.push_back(folder + "/" + std::string(sample.key) + ".png");
    std::ofstream(paths.back()) << io::as_text(png->bytes);  // faster than an atomic file
  }
  return paths;
}

}  // namespace bellows::train
