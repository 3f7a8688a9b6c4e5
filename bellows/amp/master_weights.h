#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::amp {

/// fp32 master weights of low-precision parameters, for any optimizer. An update that is smaller than half the distance
/// to the next bf16 or fp16 number would be lost in the parameter; in the master weight it accumulates.
///
/// attach() replaces the parameters in the optimizer by the master weights. Each step: backward, take_gradients(),
/// (GradScaler or clipping, on the masters' gradients), optimizer.step(), write_back(). If there are no master weights,
/// all functions do nothing, so a loop needs no condition.
/// Cost:    4 bytes per weight. A step additionally reads the gradients and writes the weights once. Optimizers with
///          their own master weights (fused, mixed dtypes) do not have this cost.
/// Threads: not thread-safe
/// Ref:     arXiv:1710.03740, section 3.1; apex.amp master_weights
class MasterWeights {
 public:
  MasterWeights() = default;
  /// Params: low – parameters by name. Those in bf16 or fp16 get a master weight; the others are not changed. A tensor
  ///         that occurs twice (tied weights) gets only one.
  ///         values – fp32 tensors in the same order to use as master weights (not copied); empty: cast from `low`
  /// Throws: c10::ValueError if the number, a shape or a dtype of `values` does not match
  explicit MasterWeights(const NamedTensors& low, std::vector<at::Tensor> values = {});

  bool empty() const { return masters_.empty(); }
  /// Names and fp32 tensors in the order of the parameters. Save them in checkpoints; they are also more precise for
  /// export.
  NamedTensors state_dict() const;
  /// Copies `state` into the master weights, and from these into the parameters.
  /// Throws: c10::ValueError if a name is missing or unknown, or a shape differs; then nothing is changed
  void load_state_dict(const NamedTensors& state);

  /// Each low-precision parameter with its master weight, for optimizers that have their own master weights. With
  /// `optimizer.set_master_weight(parameter, master)`, these start from the unrounded weights. Do not call attach(),
  /// take_gradients() and write_back() then.
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs() const;

  /// Replaces the parameters in the optimizer's groups by the master weights. Existing state is kept for them.
  /// Throws: c10::ValueError if the optimizer contains none of the parameters
  void attach(torch::optim::Optimizer& optimizer) const;

  /// Moves each gradient from its parameter to the master weight, cast to fp32. If the master weight already has a
  /// gradient, adds to it: if you call it after every backward, gradients of several batches accumulate in fp32.
  void take_gradients() const;

  /// Rounds the master weights into the parameters. You can call it after a skipped step, too.
  void write_back() const;

 private:
  NamedTensors masters_;
  std::vector<at::Tensor> low_;
};

}  // namespace bellows::amp
