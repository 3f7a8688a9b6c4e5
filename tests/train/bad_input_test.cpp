#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/checkpoint/folder.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/trainer.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string fit_error(const Recipe& recipe) {
  return error_of([&] { Trainer(recipe).fit(); });
}

/// Fits the caller's small net on `data`.
std::string small_fit_error(Recipe recipe, const data::Dataset& data) {
  return error_of([&] {
    const Model model = dropout_net();
    optim::SGD sgd(model.parameters(), {});
    Trainer(recipe).fit(model, sgd, cross_entropy_loss(model), data);
  });
}

}  // namespace

TEST(BadInput, Devices) {
  Recipe recipe = digits_recipe();
  recipe.device = "gpu";
  EXPECT_THAT(fit_error(recipe), AllOf(HasSubstr("device"), HasSubstr("\"gpu\"")));
  recipe.device = "cuda:99";
  EXPECT_THAT(fit_error(recipe), AllOf(HasSubstr("cuda:99"), HasSubstr("requested")));
  EXPECT_THAT(small_fit_error(recipe, blobs(32)), HasSubstr("cuda:99"));
}

TEST(BadInput, ModelsThatAreNotThere) {
  Recipe recipe = digits_recipe();
  recipe.model = "digits_resnt";
  EXPECT_THAT(fit_error(recipe), AllOf(HasSubstr("digits_resnt"), HasSubstr("Did you mean \"digits_resnet\"?")));
}

TEST(BadInput, DataThatIsNotThere) {
  Recipe recipe = digits_recipe();
  recipe.data = "";
  EXPECT_THAT(fit_error(recipe), HasSubstr("the recipe has no dataset"));
  recipe.data = "/nowhere/train-{0..3}.tar";
  EXPECT_THAT(fit_error(recipe), HasSubstr("/nowhere/train-0.tar"));
}

TEST(BadInput, DataOfZeroSize) {
  EXPECT_THAT(small_fit_error(Recipe{}, blobs(32).subrange(4, 4)), HasSubstr("sample"));
  const TemporaryFolder folder;
  write_bytes(folder / "train-0.tar", std::string(1024, '\0'));
  Recipe recipe = digits_recipe();
  recipe.data = folder / "train-0.tar";
  EXPECT_THAT(fit_error(recipe), HasSubstr("sample"));
}

TEST(BadInput, LabelsOutOfRange) {
  Recipe recipe = digits_recipe();
  recipe.num_classes = 7;
  EXPECT_THAT(fit_error(recipe), AllOf(HasSubstr("label"), HasSubstr("7")));
  recipe.bad_samples = "skip";
  recipe.epochs = 1;
  const CapturedLog log;
  TrainLoop loop(make_job(recipe));
  loop.run_steps(12);
  EXPECT_GT(loop.skipped_samples(), 60);
  EXPECT_EQ(loop.sample_count() + loop.skipped_samples(), 360);
}

TEST(BadInput, WeightsThatDoNotFit) {
  const TemporaryFolder folder;
  Recipe recipe = digits_recipe();
  recipe.weights = folder / "missing.pt";
  EXPECT_THAT(fit_error(recipe), HasSubstr("missing.pt"));
  write_bytes(folder / "foreign.pt", "this is no weight file");
  recipe.weights = folder / "foreign.pt";
  EXPECT_THAT(fit_error(recipe), HasSubstr("foreign.pt"));
  io::torch_save(folder / "other.pt", io::PickleValue(NamedTensors{{"layer.weight", torch::ones({2})}}));
  recipe.weights = folder / "other.pt";
  EXPECT_THAT(fit_error(recipe), AllOf(HasSubstr("other.pt"), HasSubstr("layer.weight")));
}

TEST(BadInput, TargetsWithoutHeldOutData) {
  Recipe recipe;
  recipe.target_accuracy = 0.9;
  EXPECT_THAT(small_fit_error(recipe, blobs(32)), HasSubstr("need held-out data"));
}

TEST(BadInput, CheckpointFolderThatCannotBeWritten) {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "in the way");
  Recipe recipe = digits_recipe();
  recipe.run_folder = folder / "file/run";
  EXPECT_THAT(fit_error(recipe), HasSubstr("file/run"));
}

TEST(BadInput, ResumeWithoutAFolder) {
  Trainer trainer(digits_recipe());
  trainer.resume();
  EXPECT_THAT(error_of([&] { trainer.fit(); }), HasSubstr("no run_folder"));
}

TEST(BadInput, FullDiskKeepsTheCheckpointBefore) {
  const TemporaryFolder folder;
  Recipe recipe;
  recipe.epochs = 3;
  recipe.run_folder = folder.path();
  recipe.async_checkpoints = false;  // the callback is not to be in time for the first one
  std::optional<checkpoint::FileSizeLimit> full_disk;
  Callbacks callbacks;
  callbacks.on_epoch = [&](const EpochRecord&) { full_disk.emplace(512); };  // when the first checkpoint is written
  const Model model = dropout_net();
  optim::SGD sgd(model.parameters(), {});
  const std::string message =
      error_of([&] { Trainer(recipe, callbacks).fit(model, sgd, cross_entropy_loss(model), blobs(32)); });
  full_disk.reset();
  EXPECT_THAT(message, AllOf(HasSubstr("step-000000000004.pt"), HasSubstr("File too large")));
  EXPECT_EQ(checkpoint::Folder(folder.path()).newest()->step, 2);
}

TEST(BadInput, ALossThatIsNotFiniteEndsTheRunAndKeepsTheCheckpoint) {
  const TemporaryFolder folder;
  Recipe recipe;
  recipe.epochs = 3;
  recipe.run_folder = folder.path();
  const Model model = dropout_net();
  optim::SGD sgd(model.parameters(), {});
  int64_t steps = 0;
  const LossFn loss = [&](const data::Batch& batch) {
    const at::Tensor value = cross_entropy_loss(model)(batch).loss;
    return ++steps > 3 ? value / 0.0 : value;
  };
  const std::string message = error_of([&] { Trainer(recipe).fit(model, sgd, loss, blobs(32)); });
  EXPECT_THAT(message, AllOf(HasSubstr("the loss became infinite at step 4"),
                             HasSubstr("Existing checkpoints were written before this step")));
  EXPECT_EQ(checkpoint::Folder(folder.path()).newest()->step, 2);
}

}  // namespace bellows::train
