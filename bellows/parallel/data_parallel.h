#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::parallel {

/// Whether the loss function averages or sums over the samples of its part.
enum class LossOver { mean, sum };

/// Params: loss_over – how the loss function reduces over samples
///         gradient – gradient with respect to the loss, [] or [1], such as scaler.scale(at::ones({})); undefined: 1
struct DataParallelStep {
  LossOver loss_over = LossOver::mean;
  at::Tensor gradient = {};
};

/// Data parallelism within one process. Several replicas of the model each process a part of the batch on their own
/// device or thread, and their gradients are added to those of the model. DistributedDataParallel with several
/// processes is usually faster; DataParallel needs no launcher.
/// ```
/// DataParallel dp(model, [] { return models::resnet18(); }, {3, at::kCPU});
/// at::Tensor loss = dp.backward({images, labels}, [](const Model& replica, const std::vector<at::Tensor>& part) {
///   return at::cross_entropy_loss(replica(part[0]), part[1]);
/// });
/// optimizer.step();
/// ```
/// The model itself is replica 0, so its buffers (running statistics) are updated by replica 0's part only. Replicas on
/// the model's device share its weights; replicas on other devices get a copy before each step. Grad mode, autocast and
/// taps of the calling thread also apply on the replicas' threads; backward runs without autocast. Hooks on the model's
/// parameters see only the gradients of replica 0's part.
/// Numerics: the gradient of the whole batch up to the order of sums, if a sample's loss does not depend on other
///           samples (with batch norm, it does). Results are deterministic, except for random numbers on the CPU
///           (dropout), because the threads share one generator
/// Cost:     a step copies the weights to each replica on another device and the gradients back; memory for one set of
///           gradients per replica
/// Threads:  one caller at a time; one thread per replica, each with an equal share of the intra-op threads
/// Ref:      torch.nn.DataParallel
class DataParallel {
 public:
  using Loss = std::function<at::Tensor(const Model& replica, const std::vector<at::Tensor>& part)>;

  /// Params: make – creates another model of the same kind; its initial weights are replaced. Called for all replicas
  ///                but the first
  ///         devices – one per replica; the first is the model's own. A device may occur several times
  /// Throws: c10::ValueError if `devices` is empty, the model is not on the first device, or a replica has other
  ///         parameters or buffers
  DataParallel(Model model, const std::function<Model()>& make, std::vector<c10::Device> devices);
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) noexcept;

  /// Forward, loss and backward of every replica; gradients are added to those that the model has.
  /// Params:  batch – tensors of the same size along dim 0; replica r gets the r-th of nearly equal parts. If there are
  ///                  fewer samples than replicas, the last replicas are idle
  ///          loss – called on the replicas' threads at the same time
  /// Returns: the loss of the whole batch, on the model's device, without a graph
  /// Throws:  c10::ValueError if the batch is empty or sizes differ; exceptions of `loss`, with replica and samples.
  ///          After an exception, the model's gradients are undefined: zero them
  at::Tensor backward(const std::vector<at::Tensor>& batch, const Loss& loss, const DataParallelStep& step = {});

  /// Returns the outputs of the whole batch, in order, on the model's device, without gradients.
  /// Throws: like backward()
  at::Tensor forward(const at::Tensor& input);

  size_t replicas() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::parallel
