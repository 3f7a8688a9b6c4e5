#pragma once

#include <torch/torch.h>

#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/job.h"

namespace bellows::train {

inline Recipe elastic_recipe(int64_t epochs) {
  Recipe recipe;
  recipe.epochs = epochs;
  recipe.batch_size = 10;
  recipe.lr = 0.01;
  recipe.lr_schedule = "cosine";
  recipe.logging_steps = 1;
  recipe.save_steps = 50;
  return recipe;
}

/// A job in fp64: sums in another order differ by less than 1e-9 at the end. 77 samples: the last batch has 7.
inline Job elastic_job(const Recipe& recipe) {
  seed_everything(3);
  torch::nn::BatchNorm1d norm(15);
  norm->eval();  // does not depend on the samples of a rank
  torch::nn::Sequential net(torch::nn::Linear(8, 15), norm, torch::nn::Tanh(), torch::nn::Linear(15, 3));
  net->to(at::kDouble);
  const Model model = Model::of(net, "net");
  auto optimizer = std::make_shared<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = recipe.lr});
  at::manual_seed(6);
  const at::Tensor x = torch::randn({77, 8}, at::kDouble);
  const data::Dataset data =
      data::Dataset(data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).argmax(1)}})).batch(10).threads(0);
  return Job{recipe, model, {optimizer}, cross_entropy_loss(model), data.shuffle(2), data};
}

}  // namespace bellows::train
