#include "bellows/train/step/divided_model.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <map>

#include "bellows/comm/shard.h"

namespace bellows::train {

void DividedModel::load_complete_state(torch::optim::Optimizer& optimizer, const NamedTensors& complete) const {
  const c10::NoGradGuard no_grad;
  std::vector<parallel::SavedTensor> saved;
  for (const auto& [name, tensor] : complete)
    saved.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()});
  const std::map<std::string, at::Tensor> values(complete.begin(), complete.end());
  const checkpoint::Parts wanted = wanted_shards(optimizer, saved);
  for (const auto& [name, part, spec] : wanted) at::Tensor(part).copy_(comm::part_of(values.at(name), spec));
  load_shards(optimizer, wanted);
}

void check_new_optimizers(const Job& job) {
  for (const auto& optimizer : job.optimizers) {
    TORCH_CHECK_VALUE(optimizer->state().empty(), "train: mesh = ", job.recipe.mesh,
                      " divides the parameters, but an optimizer already has state for complete ones. Pass a new "
                      "optimizer, and load its state afterwards.");
  }
}

}  // namespace bellows::train
