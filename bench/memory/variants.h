#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::bench {

/// A model with formula weights and a batch for it: bench/peers/memory.py makes the same.
struct Task {
  std::string title;
  Model model;
  at::Tensor x, y;
};

/// Params: name – "bert" (BERT-base, 8 sequences of 128), "resnet" (ResNet-50, 16 pictures of 224x224), "bert-small" (BERT of
///         20 M, 4 of 64), "resnet-small" (ResNet-18, 8 of 64x64)
Task make_task(const std::string& name);

/// A way to train with less memory.
struct Variant {
  std::string name;
  std::string peer = "";  ///< of bench/peers/memory.py
  /// The losses of the first steps are those of plain training to that relative difference; 0: bit for bit. Lossy ways
  /// differ in the gradients, which AdamW's first steps take by their signs.
  double tolerance = 0;
  int64_t micro_batches = 1;
};
const std::vector<Variant>& variants();

/// What a step holds, beside what was there before it: weights and the optimizer's state.
struct StepBytes {
  int64_t kept = 0;   ///< at the end of the forward pass: what waits for backward
  int64_t peak = 0;   ///< at most
  int64_t state = 0;  ///< the optimizer's, by its tensors
};

/// A model that is trained in one of the ways.
class Training {
 public:
  Training(const Task& task, const Variant& variant);
  /// Returns: the loss
  double step();
  StepBytes measured_step();

 private:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);
  double run(const std::function<void()>& behind_forward);

  Task task_;
  Variant variant_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<void> guard_;  ///< what lives over all steps: the file of an offload
};

}  // namespace bellows::bench
