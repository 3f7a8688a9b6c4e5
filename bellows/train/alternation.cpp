#include "bellows/train/alternation.h"

#include <set>
#include <string>

#include "bellows/train/step/update.h"

namespace bellows::train {

namespace {

std::set<const c10::TensorImpl*> tensors_in(const std::vector<at::Tensor>& parameters) {
  std::set<const c10::TensorImpl*> result;
  for (const at::Tensor& parameter : parameters) result.insert(parameter.unsafeGetTensorImpl());
  return result;
}

/// Returns a setting with which jobs cannot alternate, such as "compile = step"; empty if there is none.
std::string alternation_conflict(const Recipe& recipe) {
  if (recipe.data_parallel != "ddp") return "data_parallel = " + recipe.data_parallel;
  if (!recipe.mesh.empty()) return "mesh = " + recipe.mesh;
  if (recipe.compile != "none") return "compile = " + recipe.compile;
  if (recipe.quantize != "none") return "quantize = " + recipe.quantize;
  if (recipe.reproducible_ranks > 0) return c10::str("reproducible_ranks = ", recipe.reproducible_ranks);
  return recipe.optimizer_in_backward ? "optimizer_in_backward = true" : "";
}

}  // namespace

FrozenParameters::FrozenParameters(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) frozen_.push_back(parameter.requires_grad_(false));
  }
}

FrozenParameters::~FrozenParameters() {
  for (const at::Tensor& parameter : frozen_) parameter.requires_grad_(true);
}

void check_alternate(const Job& job) {
  const Job& other = *job.alternate;
  TORCH_CHECK_VALUE(!other.alternate,
                    "train: the alternate job has an alternate job, too. Only two jobs can alternate.");
  TORCH_CHECK_VALUE(!job.elastic,
                    "train: ranks of jobs that alternate cannot be replaced. Start the ranks without elasticity.");
  for (const Recipe* recipe : {&job.recipe, &other.recipe}) {
    const std::string conflict = alternation_conflict(*recipe);
    TORCH_CHECK_VALUE(conflict.empty(), "train: jobs that alternate do not support ", conflict,
                      ". Change this setting to its default in both recipes.");
  }
  TORCH_CHECK_VALUE(
      !other.recipe.sample_stats && other.recipe.ema_decay == 0, "train: the alternate job does not support ",
      other.recipe.sample_stats ? "sample_stats = true" : c10::str("ema_decay = ", other.recipe.ema_decay),
      ", because checkpoints contain neither statistics nor averaged weights of this job. Set the key in the "
      "recipe of the other job.");
  const auto own = tensors_in(parameters_of(job.optimizers)), known = tensors_in(job.model.parameters());
  for (const at::Tensor& parameter : parameters_of(other.optimizers)) {
    TORCH_CHECK_VALUE(!own.contains(parameter.unsafeGetTensorImpl()), "train: a parameter of shape ", parameter.sizes(),
                      " is in the optimizers of both jobs that alternate. Pass each parameter to one of them.");
    TORCH_CHECK_VALUE(known.contains(parameter.unsafeGetTensorImpl()),
                      "train: the alternate job trains a parameter of shape ", parameter.sizes(),
                      ", which the model does not contain. Register it in the model, so that checkpoints contain it.");
  }
}

}  // namespace bellows::train
