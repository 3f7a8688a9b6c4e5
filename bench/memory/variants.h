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

/// Options of a task's model.
struct ModelWays {
  bool fused_layers = false;  ///< layer norm with dropout and residual in one pass; only for "series-N"
  bool bf16_weights = false;
  bool operator==(const ModelWays&) const = default;
};

/// A model with formula weights and a batch for it. bench/peers/memory.py creates the same.
struct Task {
  std::string name, title;
  Model model;
  at::Tensor x, y;
};

/// Params: name – "bert" (BERT-base, 8 sequences of 128), "resnet" (ResNet-50, 16 images of 224x224), "bert-small" (BERT with 20 M
///                parameters, 4 sequences of 64), "resnet-small" (ResNet-18, 8 images of 64x64), or "series-N" (a transformer with
///                encoder and decoder, N series of 13 steps with 188 values and two classes, the shape of the American Express data)
Task make_task(const std::string& name, const ModelWays& ways = {});

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
MakeOptimizer adamw(optim::AdamWOptions options = {});

/// A way to train with less memory or in less time.
struct Variant {
  std::string name;
  std::string peer = "";  ///< name in bench/peers/memory.py
  /// The losses of the first steps must match those of the variant `like` within this relative difference; 0 means bit-identical. Lossy
  /// variants have different gradients, and the first steps of AdamW depend only on their signs.
  double tolerance = 0;
  std::string like = "";  ///< name of a variant; empty: the plain variant
  bool first_only =
      false;  ///< compare only the first loss with `like`, because later losses differ too much; all losses must match the peer's
  ModelWays model = {};
  models::RunBlock run_block = nullptr;  ///< null: blocks are called directly
  int64_t segments = 0;  ///< number of segments for checkpoint_sequential, only for ResNets; 0: not used
  std::optional<recompute::ActivationBits> bits = {};
  /// Largest relative error of the gradient of the first block with stochastically rounded activations, about twice the observed error. The
  /// mean of several seeds must be closer to the plain gradient. 0: not checked.
  double noise = 0;
  bool offloads = false, budget = false, autocast = false, steps_in_backward = false;
  MakeOptimizer optimizer = adamw();
  int64_t micro_batches = 1;  ///< gradient accumulation steps per step
  int64_t update_every = 1;   ///< number of steps per optimizer update
};
/// Returns all variants. The first one is the plain variant.
const std::vector<Variant>& variants_of(const std::string& task);

/// Bytes in a step, without the weights and the optimizer state that existed before it.
struct StepBytes {
  int64_t kept = 0;   ///< bytes at the end of the forward pass, which are saved for backward
  int64_t peak = 0;   ///< largest number of bytes during the step
  int64_t state = 0;  ///< bytes of the optimizer's tensors
};

/// A model that is trained with one variant.
class Training {
 public:
  Training(const Task& task, const Variant& variant);
  /// Returns: the loss
  double step();
  /// Returns the losses of the first steps from the formula weights.
  std::vector<double> first_losses(int64_t count);
  StepBytes measured_step();
  /// Returns the gradient of the first block's weights, from the formula weights. It contains the rounding noise of all other blocks.
  /// Params: seed – seed of the rounding of activations
  at::Tensor first_gradient(uint64_t seed);

 private:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);
  double run(const std::function<void()>& behind_forward);

  Task task_;
  Variant variant_;
  int64_t steps_ = 0;
  uint64_t seed_ = 1;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<void> guard_;  ///< guard for all steps, such as an OffloadGuard with its file
};

}  // namespace bellows::bench
