#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::amp {

/// fp32 master weights of low-precision parameters, for any optimizer. A bf16 or fp16 parameter loses updates that are
/// smaller than half the distance to the next representable number. A master weight accumulates them.
///
/// attach() replaces the parameters in the optimizer with their master weights. In each step, call backward(),
/// take_gradients(), optimizer.step() and write_back() in this order. After take_gradients(), a GradScaler or clipping
/// works on the gradients of the master weights. If there are no master weights, all functions do nothing, so your
/// training loop needs no condition.
/// Cost:    4 bytes per weight. Each step additionally reads the gradients and writes the weights once. Fused
///          optimizers that have their own master weights do not need these additional passes.
/// Threads: not thread-safe
/// Ref:     arXiv:1710.03740, section 3.1; apex.amp master_weights
class MasterWeights {
 public:
  MasterWeights() = default;
  /// Params: low – parameters by name. Each bf16 or fp16 parameter gets a master weight; other parameters are not
  ///         changed. A tensor that occurs twice (tied weights) gets only one master weight.
  ///         values – fp32 tensors that become the master weights without a copy, in the order of `low`; empty: the
  ///         master weights are cast from `low`
  /// Throws: c10::ValueError if the number of `values`, or the shape or dtype of one of them, does not match `low`
  explicit MasterWeights(const NamedTensors& low, std::vector<at::Tensor> values = {});

  bool empty() const { return masters_.empty(); }
  /// Returns the names and fp32 tensors in the order of the parameters. Save them in checkpoints. For export, they are
  /// more precise than the parameters.
  NamedTensors state_dict() const;
  /// Copies `state` to the master weights, and writes the rounded master weights to the parameters.
  /// Throws: c10::ValueError if a name is missing or unknown, or a shape differs; nothing is changed in this case
  void load_state_dict(const NamedTensors& state);

  /// Returns each low-precision parameter with its master weight, for optimizers that have their own master weights.
  /// Call `optimizer.set_master_weight(parameter, master)` with each pair, so that the optimizer starts from the
  /// unrounded weights. In this case, do not call attach(), take_gradients() and write_back().
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs() const;

  /// Replaces the low-precision parameters in the optimizer's groups with their master weights. The master weights take
  /// over the existing optimizer state.
  /// Throws: c10::ValueError if the optimizer contains none of the low-precision parameters
  void attach(torch::optim::Optimizer& optimizer) const;

  /// Casts the gradient of each low-precision parameter to fp32 and moves it to the master weight. If the master weight
  /// already has a gradient, the new gradient is added to it. To accumulate the gradients of several batches in fp32,
  /// call this function after every backward pass.
  void take_gradients() const;

  /// Writes the rounded master weights to the parameters. You can also call this function after a skipped step.
  void write_back() const;

 private:
  NamedTensors masters_;
  std::vector<at::Tensor> low_;
};

}  // namespace bellows::amp
