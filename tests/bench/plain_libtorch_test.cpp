#include "bellows/ladder/plain_libtorch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "bellows/models/resnet.h"
#include "bellows/system/file.h"

namespace bellows {

namespace {

plain_libtorch::Options digits() {
  return {.data = BELLOWS_SOURCE_DIR "/data/digits"};
}

}  // namespace

// The baseline includes nothing of Bellows and still is the same model: names, order, shapes.
TEST(PlainLibtorch, TrainsTheModelThatBellowsHas) {
  const plain_libtorch::Training training(digits());
  const NamedTensors baseline = training.state_dict();
  const Model model = models::digits_resnet();
  const NamedTensors own = model.state_dict();
  ASSERT_EQ(baseline.size(), own.size());
  for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(baseline[i].first, own[i].first);
  EXPECT_TRUE(load_state_dict(model, baseline).complete());
}

TEST(PlainLibtorch, ReachesTheTargetOnHeldOutDigits) {
  plain_libtorch::Training training(digits());
  EXPECT_EQ(training.train_size(), 1438);
  EXPECT_EQ(training.test_size(), 359);
  EXPECT_EQ(training.steps_per_epoch(), 23);
  EXPECT_LT(training.evaluate(), 0.5);
  for (int epoch = 0; epoch < 12 && training.evaluate() < 0.97; ++epoch) training.run_steps(training.steps_per_epoch());
  EXPECT_GE(training.evaluate(), 0.97);
  EXPECT_EQ(training.step_count() % training.steps_per_epoch(), 0);
}

TEST(PlainLibtorch, ScalesTheDigitsAndSaysWhereTheTimeGoes) {
  plain_libtorch::Options options = digits();
  const double as_they_are = plain_libtorch::Training(options).first_batch_loss();
  options.image_size = 8;
  EXPECT_EQ(plain_libtorch::Training(options).first_batch_loss(), as_they_are);
  options.image_size = 16;
  plain_libtorch::Training scaled(options);
  EXPECT_NE(scaled.first_batch_loss(), as_they_are);
  scaled.run_steps(2);
  const plain_libtorch::PhaseSeconds& phases = scaled.phase_seconds();
  for (const double seconds : {phases.load, phases.forward, phases.backward, phases.optimizer}) EXPECT_GT(seconds, 0);
}

TEST(PlainLibtorch, MissingDataIsNamed) {
  EXPECT_THROW(plain_libtorch::Training({.data = "/no/such/folder"}), std::exception);
}

TEST(PlainLibtorch, ADamagedShardIsNotAShorterOne) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("bellows_plain_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  fs::copy_file(digits().data + "/train-000.tar", folder / "train-000.tar", fs::copy_options::overwrite_existing);
  std::string shard = read_text_file(digits().data + "/test-000.tar");
  shard[20 * 1024 + 3] ^= 1;  // a header in the midst: its checksum fails
  write_text_file(folder / "test-000.tar", shard);
  std::string message;
  try {
    plain_libtorch::Training({.data = folder});
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  fs::remove_all(folder);
  EXPECT_NE(message.find("test-000.tar is damaged"), std::string::npos) << message;
}

}  // namespace bellows
