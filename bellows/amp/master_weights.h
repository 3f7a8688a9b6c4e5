#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::amp {

/// fp32 copies of low-precision parameters, for an optimizer of any kind. An update that is smaller than half the
/// distance to the next bf16 or fp16 number would be lost in the weight itself; in the master it adds up.
///
/// attach() puts the masters into the optimizer in the parameters' place. Each step: backward, take_gradients(),
/// (GradScaler, clipping: on the masters' gradients), optimizer.step(), write_back(). With nothing to hold, every
/// function does nothing, so that a loop needs no condition.
/// Cost:     4 bytes a weight; a step reads the gradients and writes the weights once more. An optimizer that keeps
///           masters by itself (fused, mixed dtypes) does without
/// Threads:  one owner
/// Ref:      arXiv:1710.03740, section 3.1; apex.amp master_weights
class MasterWeights {
 public:
  MasterWeights() = default;
  /// Params: low – parameters by name: those in bf16 or fp16 get a master, the others are left alone; a tensor that
  ///         stands there twice (tied weights) gets one
  ///         values – fp32 tensors of the same order to use as masters (kept, not copied); empty: cast from `low`
  /// Throws: c10::ValueError – another number, shape or dtype
  explicit MasterWeights(const NamedTensors& low, std::vector<at::Tensor> values = {});

  bool empty() const { return masters_.empty(); }
  /// Name and fp32 tensor, in the parameters' order: what a checkpoint should hold, and the better weights to export.
  NamedTensors state_dict() const;
  /// Copies into the masters and from there into the parameters.
  /// Throws: c10::ValueError – a name is missing or unknown, or a shape differs; nothing has been changed then
  void load_state_dict(const NamedTensors& state);

  /// Each low-precision parameter with its master. For optimizers that keep masters by themselves
  /// (`optimizer.set_master_weight(parameter, master)`): these start from the weights before they were rounded. Then
  /// attach(), take_gradients() and write_back() are not called.
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs() const;

  /// Puts the masters into the optimizer's groups; state that it has already is kept under them.
  /// Throws: c10::ValueError – the optimizer holds none of the parameters
  void attach(torch::optim::Optimizer& optimizer) const;

  /// Moves each gradient from its parameter to the master, cast to fp32; adds where the master has one. Called behind
  /// every backward, gradients of several batches add up in fp32.
  void take_gradients() const;

  /// Rounds the masters into the parameters. Does no harm behind a step that was left out.
  void write_back() const;

 private:
  NamedTensors masters_;
  std::vector<at::Tensor> low_;
};

}  // namespace bellows::amp
