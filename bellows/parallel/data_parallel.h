#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::parallel {

/// What a loss function makes of the samples of its part.
enum class LossOver { mean, sum };

/// Params: loss_over – what the loss function computes
///         gradient – of what follows with respect to the loss, [] or [1]: scaler.scale(at::ones({})); none: 1
struct DataParallelStep {
  LossOver loss_over = LossOver::mean;
  at::Tensor gradient = {};
};

/// One process, one model, several replicas of it: each takes a part of the batch on a device or thread of its own, and
/// their gradients are added up in the model. Many processes (DistributedDataParallel) are faster as a rule; this needs
/// none, and no launcher.
/// ```
/// DataParallel dp(model, [] { return models::resnet18(); }, {3, at::kCPU});
/// at::Tensor loss = dp.backward({images, labels}, [](const Model& replica, const std::vector<at::Tensor>& part) {
///   return at::cross_entropy_loss(replica(part[0]), part[1]);
/// });
/// optimizer.step();
/// ```
/// The model itself is replica 0, so buffers (running statistics) are what replica 0 made of its part. Replicas on the
/// model's device use its weights, others get a copy before each step. Grad mode, autocast and taps of the calling thread
/// hold on the replicas' threads; backward runs outside of autocast. Hooks on the model's parameters see its own part's
/// gradients only.
/// Numerics: the gradient of the whole batch but for the order of sums, where a sample's loss depends on no other sample (batch
///           norm's does); the same bits each time, except for random numbers on the CPU (dropout): the threads draw from one
///           generator as they come
/// Cost:     a step moves, for each replica on another device, the weights there and the gradients back; memory of one set
///           of gradients a replica
/// Threads:  one caller at a time; one thread a replica, with its share of the intra-op threads
/// Ref:      torch.nn.DataParallel
class DataParallel {
 public:
  using Loss = std::function<at::Tensor(const Model& replica, const std::vector<at::Tensor>& part)>;

  /// Params: make – another model of the same kind; its initial weights do not matter. Called for all replicas but the first
  ///         devices – one replica each; the first is the model's own. The same device may stand there several times
  /// Throws: c10::ValueError – no devices; the model is not on the first; a replica with other parameters or buffers
  DataParallel(Model model, const std::function<Model()>& make, std::vector<c10::Device> devices);
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) noexcept;

  /// Forward, loss and backward of every replica; gradients are added to those that the model has.
  /// Params:  batch – tensors with one size along dim 0; replica r gets the r-th of nearly equal parts. Fewer samples than
  ///          replicas: the last ones rest. `loss` is called on the replicas' threads, at the same time
  /// Returns: the whole batch's loss, on the model's device, without a graph
  /// Throws:  c10::ValueError – an empty batch, sizes that differ; what `loss` threw, with replica and samples. The model's
  ///          gradients are undetermined then: zero them
  at::Tensor backward(const std::vector<at::Tensor>& batch, const Loss& loss, const DataParallelStep& step = {});

  /// Outputs of the whole batch, in order, on the model's device. Without gradients.
  /// Throws: as backward
  at::Tensor forward(const at::Tensor& input);

  size_t replicas() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::parallel
