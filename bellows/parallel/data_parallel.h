#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::parallel {

/// How the loss function combines the losses of the samples in its part of the batch.
enum class LossOver { mean, sum };

/// Params: loss_over – how the loss function combines the losses of the samples
///         gradient – gradient with respect to the loss, of shape [] or [1], such as scaler.scale(at::ones({})); 1 if
///                    undefined
struct DataParallelStep {
  LossOver loss_over = LossOver::mean;
  at::Tensor gradient = {};
};

/// A part of a batch.
/// Params: replica – number of the replica that processes the part
///         begin   – number of the part's first sample in the batch
struct BatchPart {
  size_t replica = 0;
  int64_t begin = 0;
};

/// Bytes that the replicas have exchanged with the model. Replicas on the model's device use its weights without a
/// copy.
struct ReplicaTraffic {
  int64_t weights = 0;    ///< weights that were copied to replicas on other devices
  int64_t buffers = 0;    ///< buffers that were copied to all replicas
  int64_t gradients = 0;  ///< gradients of the replicas that were added to those of the model
};

/// Data parallelism within one process. Each replica of the model processes a part of the batch on its own device or
/// thread. The gradients of all replicas are then added to those of the model. DistributedDataParallel with several
/// processes is usually faster, but DataParallel needs no launcher.
/// ```
/// DataParallel dp(model, [] { return models::resnet18(); }, {3, at::kCPU});
/// at::Tensor loss = dp.backward({images, labels}, [](const Model& replica, const std::vector<at::Tensor>& part) {
///   return at::cross_entropy_loss(replica(part[0]), part[1]);
/// });
/// optimizer.step();
/// ```
/// The model itself is replica 0, so only replica 0's part of the batch updates the model's buffers (running
/// statistics). Replicas on the model's device share its weights. Replicas on other devices get a copy of the weights
/// before each step. The replicas' threads use the grad mode, autocast guard and taps of the calling thread, but
/// backward runs without autocast. Hooks on the model's parameters see only the gradients of replica 0's part.
/// Numerics: matches the gradient of the full batch except for the order of sums, provided that a sample's loss does
///           not depend on other samples. With batch norm, it does. Results are deterministic, except for random
///           numbers on the CPU (dropout), because the threads share one generator
/// Cost:     each step copies the weights to every replica on another device, and the gradients back. Each replica
///           needs memory for one set of gradients
/// Threads:  one caller at a time; one thread per replica, each with an equal share of the intra-op threads
/// Ref:      torch.nn.DataParallel
class DataParallel {
 public:
  using Loss = std::function<at::Tensor(const Model& replica, const std::vector<at::Tensor>& part)>;
  /// A loss function that also receives the place of its part in the batch.
  using LossOfPart =
      std::function<at::Tensor(const Model& replica, const std::vector<at::Tensor>& tensors, const BatchPart& part)>;

  /// Params: make – creates another model with the same parameters and buffers. It is called for each replica except
  ///                the first. The initial weights of the new model are replaced
  ///         devices – one device per replica, the model's device first. A device may occur several times
  /// Throws: c10::ValueError if `devices` is empty, if the model is not on the first device, or if the parameters or
  ///         buffers of a replica differ from the model's
  DataParallel(Model model, const std::function<Model()>& make, std::vector<c10::Device> devices);
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) noexcept;

  /// Runs forward, loss and backward on every replica, and adds the gradients to the model's existing gradients.
  /// Params:  batch – tensors of the same size along dim 0. They are split into nearly equal parts, and replica r gets
  ///                  part r. If there are fewer samples than replicas, the last replicas are idle
  ///          loss – loss function. The replicas' threads call it concurrently
  /// Returns: the loss of the full batch, on the model's device, without an autograd graph
  /// Throws:  c10::ValueError if the batch is empty or the sizes along dim 0 differ. Exceptions of `loss` are passed
  ///          on, with the replica and its samples in the message. After an exception, the values of the model's
  ///          gradients are unspecified, so set them to zero
  at::Tensor backward(const std::vector<at::Tensor>& batch, const Loss& loss, const DataParallelStep& step = {});
  at::Tensor backward(const std::vector<at::Tensor>& batch, const LossOfPart& loss, const DataParallelStep& step = {});

  /// Returns the outputs for the full batch, in order, on the model's device, without gradients.
  /// Throws: like backward()
  at::Tensor forward(const at::Tensor& input);

  size_t replicas() const;
  /// Returns the bytes that all calls so far have copied and added.
  ReplicaTraffic exchanged() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::parallel
