#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>

namespace bellows::optim {

/// Params: offload_state – true: the optimizer's state, including master weights, is kept in an unlinked temporary file
///         between two steps of a parameter. Disk space for the complete state is allocated at the start. During
///         backward, state is prefetched in the order in which gradients arrived in the previous pass. Changed state is
///         written back in the background.
///         folder – folder of the file; if empty, $TMPDIR or /tmp. Some systems keep /tmp in memory.
///         in_flight_bytes – limit for prefetched state, and a separate limit of the same size for state that waits to
///         be written
struct StepInBackwardOptions {
  bool offload_state = false;
  std::string folder = {};
  int64_t in_flight_bytes = 256 << 20;
};

struct OffloadedStateStats {
  int64_t file_bytes = 0, resident_bytes = 0;  ///< size of the file; number of its bytes that are in memory
};

/// While the object exists, each backward pass updates every parameter of `optimizer` as soon as its gradient is
/// complete. It then frees the gradient. Gradients therefore need only as much memory as the largest gradient, instead
/// of the memory for all gradients. Your loop no longer calls step():
/// ```
/// const auto stepping = optim::step_in_backward(optimizer);
/// for (const Batch& batch : batches) loss_of(batch).backward();
/// ```
/// Each backward pass is a step. Gradient accumulation and norms over all gradients are therefore not available. You
/// can set learning rates between passes. If several layers share a weight, it is updated once, with the sum of its
/// gradients. If a backward pass throws, the parameters with complete gradients are already updated.
///
/// On several ranks, pass the result of parallel::zero_optimizer() with stage 2 or 3. A bucket of parameters is then
/// updated when its gradients are averaged (ShardedOptimizer::step_in_backward()).
///
/// With `offload_state`, at most twice `in_flight_bytes` of state are in memory, instead of the complete state.
/// state_dict(), load_state_dict() and save() work as usual. When you access state, it is read from the file. The file
/// is deleted when its last tensor is destroyed or when the process ends, even with kill -9. When this object is
/// destroyed, the state stays in the file.
/// Numerics: bit-identical to backward(), step(), zero_grad() (tests/optim/step_in_backward_test.cpp)
/// Cost:     one step() per parameter. With offload_state, each pass reads and writes the state once. For AdamW, this
///           transfers 16 bytes per parameter, or 4 bytes with int8 state. If the disk is slower than backward,
///           backward waits for it.
/// Threads:  autograd can step parameters of several devices concurrently; otherwise not thread-safe
/// Throws:   c10::ValueError for LBFGS and for ZeRO-1, and if a parameter already has a gradient (an
///           accumulation is in progress). It is also thrown if a parameter has another hook on its gradient
///           (DistributedDataParallel, a second step_in_backward). With offload_state, it is also thrown for parameters
///           on devices other than the CPU, for custom optimizer classes, and for Adafactor. c10::Error if the folder
///           does not exist or its disk has too little space (the message states the required and the available space).
///           If create_graph is set or the disk fails, backward() throws. The functions clip_grad_norm_() and
///           clip_and_step(), and a GradScaler's unscale_() and step(), throw because the gradients are already freed.
/// Ref:      pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html; arXiv:2104.07857
///           (ZeRO-Infinity)
class StepInBackward {
 public:
  explicit StepInBackward(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options = {});
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  /// Both values are 0 without offload_state.
  OffloadedStateStats state_stats() const;
  /// Waits until all changed state is written to the disk and removed from memory.
  /// Throws: c10::Error if the disk fails
  void wait();

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;   ///< null for optimizers that update parameters in backward themselves
  std::shared_ptr<void> sharded_;  ///< the guard of such an optimizer
};

/// Params: optimizer – must outlive the result
std::unique_ptr<StepInBackward> step_in_backward(torch::optim::Optimizer& optimizer,
                                                 const StepInBackwardOptions& options = {});

}  // namespace bellows::optim
