#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>

#include "bellows/optim/averaging.h"

namespace bellows::optim {

namespace {

/// The batch norms of a model, which average over all batches while it lives.
class CumulativeBatchNorm {
 public:
  explicit CumulativeBatchNorm(const Model& model) : model_(model), training_(model.training()) {
    for (const auto& module : model.module()->modules()) {
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(module));
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(module));
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm3dImpl>(module));
    }
  }
  ~CumulativeBatchNorm() {
    for (const auto& put_back : put_back_) put_back();
    if (started_) model_.train(training_);
  }
  CumulativeBatchNorm(const CumulativeBatchNorm&) = delete;
  CumulativeBatchNorm& operator=(const CumulativeBatchNorm&) = delete;

  bool empty() const { return start_.empty(); }
  void start() {
    started_ = true;
    model_.train();
    for (const auto& start : start_) start();
  }

 private:
  template <class Norm>
  void add(const std::shared_ptr<Norm>& norm) {
    if (!norm) return;
    start_.push_back([norm] {
      norm->reset_running_stats();
      norm->options.momentum(std::nullopt);
    });
    put_back_.push_back([norm, momentum = norm->options.momentum()] { norm->options.momentum(momentum); });
  }

  const Model& model_;
  bool training_, started_ = false;
  std::vector<std::function<void()>> start_, put_back_;
};

}  // namespace

void update_bn(const Model& model, const std::function<at::Tensor()>& next) {
  TORCH_CHECK_VALUE(next, "update_bn: expected a function that gives the inputs, got an empty one.");
  CumulativeBatchNorm norms(model);
  if (norms.empty()) return;
  at::Tensor input = next();
  TORCH_CHECK_VALUE(input.defined(), "update_bn: expected at least one batch, got none. Was the loader started?");
  const c10::NoGradGuard no_grad;
  const auto parameters = model.parameters();
  norms.start();
  for (; input.defined(); input = next()) model.forward(parameters.empty() ? input : input.to(parameters[0].device()));
}

}  // namespace bellows::optim
