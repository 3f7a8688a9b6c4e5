#include "bench/ddp/trainer_loop.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "bellows/data/source.h"
#include "bellows/optim/optimizers.h"
#include "bench/ddp/tasks.h"

namespace bellows::bench {

std::unique_ptr<train::TrainLoop> make_trainer_loop(const std::string& model, const comm::Group& ranks,
                                                    double learning_rate, int64_t parts) {
  constexpr int64_t batches = 8;
  const Task task = make_task(model, 0, 1);
  train::Recipe recipe;
  recipe.batch_size = task.x.size(0);
  recipe.lr = learning_rate;
  recipe.optimizer = "adamw";
  recipe.train_metrics = "none";
  recipe.num_workers = 0;
  recipe.reproducible_ranks = parts;
  std::vector<int64_t> repeats(static_cast<size_t>(task.x.dim()), 1);
  repeats[0] = batches;
  const auto data = data::Dataset(data::from_tensors({{"x", task.x.repeat(repeats)}, {"y", task.y.repeat({batches})}}))
                        .sequential()
                        .batch(recipe.batch_size)
                        .threads(0);
  const auto optimizer =
      std::make_shared<optim::AdamW>(task.model.parameters(), optim::AdamWOptions{.lr = learning_rate});
  const train::LossFn loss = [net = task.model, loss = task.loss](const data::Batch& batch) {
    return loss(net.forward(batch["x"]), batch["y"]);
  };
  train::Job job{recipe, task.model, {optimizer}, loss, data, std::nullopt};
  job.ranks = ranks;
  return std::make_unique<train::TrainLoop>(std::move(job));
}

}  // namespace bellows::bench
