#include "bellows/parallel/ddp/local_sgd.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/flat_tensors.h"
#include "bellows/parallel/hooks/hook_state.h"

namespace bellows::parallel {

namespace {

class LocalHook final : public GradientHook {
 public:
  LocalHook(std::shared_ptr<std::atomic<int64_t>> step, int64_t warmup_steps, std::optional<comm::Group> inner)
      : step_(std::move(step)), warmup_steps_(warmup_steps), inner_(std::move(inner)) {}

  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    if (*step_ >= warmup_steps_ && !inner_) return bucket.flat;
    const comm::Group& ranks = *step_ < warmup_steps_ ? group : *inner_;
    return nothing_to_exchange(bucket, ranks) ? bucket.flat : exact_mean(bucket.flat, ranks);
  }
  std::string describe() const override {
    return c10::str("local SGD, ", warmup_steps_, " synchronized steps",
                    inner_ ? ", then within " + inner_->name() : "");
  }

 private:
  std::shared_ptr<std::atomic<int64_t>> step_;
  int64_t warmup_steps_;
  std::optional<comm::Group> inner_;
};

/// The tensors of one dtype and device, in order.
std::vector<std::vector<at::Tensor>> alike(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group[0].scalar_type() == tensor.scalar_type() && group[0].device() == tensor.device();
    });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(tensor);
  }
  return groups;
}

}  // namespace

LocalSgd::LocalSgd(std::vector<at::Tensor> parameters, comm::Group group, const LocalSgdOptions& options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(options),
      step_(std::make_shared<std::atomic<int64_t>>(0)) {
  TORCH_CHECK_VALUE(!parameters_.empty(), "LocalSgd: expected parameters, got none.");
  TORCH_CHECK_VALUE(options_.period >= 1, "LocalSgd: expected a period of at least 1, got ", options_.period, ".");
  TORCH_CHECK_VALUE(options_.warmup_steps >= 0, "LocalSgd: expected warmup_steps of at least 0, got ",
                    options_.warmup_steps, ".");
}

std::shared_ptr<GradientHook> LocalSgd::gradient_hook(std::optional<comm::Group> inner) const {
  return std::make_shared<LocalHook>(step_, options_.warmup_steps, std::move(inner));
}

bool LocalSgd::average() {
  const int64_t since = (*step_)++ - options_.warmup_steps;
  if (since < 0 || since % options_.period != 0) return false;
  const c10::NoGradGuard no_grad;
  if (group_.size() > 1) {
    for (const auto& tensors : alike(parameters_)) copy_flat(exact_mean(flattened(tensors), group_), tensors);
  }
  return true;
}

NamedTensors LocalSgd::state() const {
  return {{"step", at::tensor(step())}};
}

void LocalSgd::restore(const NamedTensors& state) {
  TORCH_CHECK_VALUE(state.size() == 1 && state[0].first == "step" && state[0].second.numel() == 1,
                    "LocalSgd: expected one number, \"step\", got ", state.size(), " entries",
                    state.empty() ? "" : ", the first \"" + state[0].first + "\"", ".");
  *step_ = state[0].second.item<int64_t>();
}

}  // namespace bellows::parallel
