#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "bench/compile/ordinary_programs.h"

namespace bellows::bench {

using Batch = std::vector<at::Tensor>;  ///< inputs, and targets last

/// While this object exists, libtorch's own autocast is on. (amp::AutocastGuard would also speed up the plain side.)
class PlainAutocast {
 public:
  explicit PlainAutocast(bool enabled) : outer_(at::autocast::is_autocast_enabled(at::kCPU)) {
    if (!enabled) return;
    on_ = true;
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~PlainAutocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, outer_);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  PlainAutocast(const PlainAutocast&) = delete;
  PlainAutocast& operator=(const PlainAutocast&) = delete;

 private:
  bool on_ = false, outer_;
};

/// Creates batches by calling `make` four times. A run uses them in turns, like a loop over a data loader.
template <class Make>
std::vector<Batch> four_batches(const Make& make) {
  std::vector<Batch> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(make());
  return batches;
}

/// Returns a program with the usual training step.
/// Params: loss – computes the loss of a batch
template <class Loss>
TrainingRun training_run(std::vector<at::Tensor> parameters, std::shared_ptr<torch::optim::Optimizer> optimizer,
                         std::vector<Batch> batches, bool autocast, Loss loss) {
  auto step = [optimizer = std::move(optimizer), batches = std::move(batches), loss = std::move(loss), autocast,
               turn = size_t{0}]() mutable {
    const Batch& batch = batches[turn++ % batches.size()];
    optimizer->zero_grad();
    at::Tensor value;
    {
      const PlainAutocast guard(autocast);
      value = loss(batch);
    }
    value.backward();
    optimizer->step();
    return value.detach();
  };
  return {std::move(step), std::move(parameters)};
}

inline std::shared_ptr<torch::optim::Optimizer> adam(const std::vector<at::Tensor>& parameters, double rate = 1e-3,
                                                     double weight_decay = 0) {
  return std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(rate).weight_decay(weight_decay));
}

inline std::shared_ptr<torch::optim::Optimizer> sgd(const std::vector<at::Tensor>& parameters, double rate,
                                                    double momentum = 0) {
  return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(rate).momentum(momentum));
}

}  // namespace bellows::bench
