#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/models/blocks.h"
#include "bellows/optim/optimizers.h"
#include "bellows/recompute/compress.h"

namespace bellows::bench {

/// How a task's model is made: with ways that are its own.
struct ModelWays {
  bool fused_layers = false;  ///< layer norm with dropout and residual in one pass: only the series' model has them
  bool bf16_weights = false;
  bool operator==(const ModelWays&) const = default;
};

/// A model with formula weights and a batch for it: bench/peers/memory.py makes the same.
struct Task {
  std::string name, title;
  Model model;
  at::Tensor x, y;
};

/// Params: name – "bert" (BERT-base, 8 sequences of 128), "resnet" (ResNet-50, 16 pictures of 224x224), "bert-small" (BERT of
///         20 M, 4 of 64), "resnet-small" (ResNet-18, 8 of 64x64), "series-N" (a transformer with encoder and decoder, N
///         series of 13 steps with 188 values and a class of two: the shape of the American Express data)
Task make_task(const std::string& name, const ModelWays& ways = {});

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
MakeOptimizer adamw(optim::AdamWOptions options = {});

/// A way to train with less memory, or in less time.
struct Variant {
  std::string name;
  std::string peer = "";  ///< of bench/peers/memory.py
  /// The losses of the first steps are those of the variant `like` to that relative difference; 0: bit for bit. Lossy
  /// ways differ in the gradients, which AdamW's first steps take by their signs.
  double tolerance = 0;
  std::string like = "";  ///< its name; empty: the plain one
  bool first_only =
      false;  ///< what the first step changes is too far from what `like` does; the peer's losses are as ours
  ModelWays model = {};
  models::RunBlock run_block = nullptr;  ///< null: directly
  int64_t segments = 0;                  ///< of all blocks, under checkpoint_sequential: a ResNet's; 0: none
  std::optional<recompute::ActivationBits> bits = {};
  /// Of activations rounded at random: the most that the gradient of the first block is off, relative, about twice what was
  /// seen. The mean of several seeds has to come nearer to the plain one. 0: not looked at.
  double noise = 0;
  bool offloads = false, budget = false, autocast = false, steps_in_backward = false;
  MakeOptimizer optimizer = adamw();
  int64_t micro_batches = 1;  ///< of a step
  int64_t update_every = 1;   ///< steps
};
/// The first is the plain one.
const std::vector<Variant>& variants_of(const std::string& task);

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
  /// Of steps from the formula's weights on.
  std::vector<double> first_losses(int64_t count);
  StepBytes measured_step();
  /// Of the first block's weights, which has the noise of all others in it, from the formula's weights.
  /// Params: seed – of the rounding of activations
  at::Tensor first_gradient(uint64_t seed);

 private:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);
  double run(const std::function<void()>& behind_forward);

  Task task_;
  Variant variant_;
  int64_t steps_ = 0;
  uint64_t seed_ = 1;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<void> guard_;  ///< what lives over all steps: the file of an offload
};

}  // namespace bellows::bench
