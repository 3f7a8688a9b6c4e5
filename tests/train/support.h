#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "bellows/data/source.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/registry.h"
#include "bellows/train/job.h"
#include "bellows/train/step/train_loop.h"
#include "bellows/train/trainer.h"
#include "tests/checkpoint/support.h"

namespace bellows::train {

using checkpoint::error_of;
using checkpoint::read_bytes;
using checkpoint::TemporaryFolder;
using checkpoint::write_bytes;

inline std::string digits_folder() {
  return std::string(BELLOWS_SOURCE_DIR) + "/data/digits";
}

/// Twelve steps an epoch on a quarter of the real digits, everything else plain.
inline Recipe digits_recipe() {
  Recipe recipe;
  recipe.data = digits_folder() + "/train-000.tar";
  recipe.eval_data = digits_folder() + "/test-000.tar";
  recipe.batch_size = 32;
  recipe.epochs = 2;
  recipe.lr = 0.1;
  recipe.optimizer_impl = "loop";
  recipe.num_workers = 0;
  return recipe;
}

/// The losses of the first steps.
inline std::vector<double> losses_of(const Recipe& recipe, int64_t steps = 20) {
  TrainLoop loop(make_job(recipe));
  loop.run_steps(steps);
  return loop.take_losses();
}

/// A file with the weights of a model that was trained for some steps.
inline std::string trained_weights(const TemporaryFolder& folder, const std::string& model, int64_t steps) {
  Recipe recipe = digits_recipe();
  recipe.model = model;
  recipe.seed = 5;
  TrainLoop loop(make_job(recipe));
  loop.run_steps(steps);
  const std::string path = folder.path() + "/" + model + ".safetensors";
  io::save_safetensors(path, loop.job().model.state_dict());
  return path;
}

/// Random features and labels that depend on them: 8 numbers, 3 classes.
inline data::Dataset blobs(int64_t n, uint64_t seed = 0) {
  at::manual_seed(seed + 1000);
  const at::Tensor x = torch::randn({n, 8});
  return data::Dataset(data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).argmax(1)}})).batch(16);
}

/// A model with dropout, so that the random generators matter.
inline Model dropout_net() {
  return Model::of(torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Dropout(0.3),
                                         torch::nn::Linear(32, 3)),
                   "dropout_net");
}

inline std::vector<at::Tensor> copies_of(const Model& model) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : model.state_dict()) result.push_back(tensor.detach().clone());
  return result;
}

inline void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i;
}

}  // namespace bellows::train
