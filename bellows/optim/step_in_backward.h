#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>

namespace bellows::optim {

/// Params: offload_state – keep the optimizer's state, including master weights, in an unlinked temporary file between
///         two steps of a parameter. Disk space for all of it is allocated at the start. During backward, the state for
///         the next gradients is prefetched in the order of the previous pass, and changed state is written back in the
///         background.
///         folder – folder of the file; empty: $TMPDIR, or /tmp. On some systems, /tmp is in memory.
///         in_flight_bytes – limit for state that is prefetched, and also for state that waits to be written
struct StepInBackwardOptions {
  bool offload_state = false;
  std::string folder = {};
  int64_t in_flight_bytes = 256 << 20;
};

struct OffloadedStateStats {
  int64_t file_bytes = 0, resident_bytes = 0;  ///< size of the file; part of it that is in memory
};

/// While it lives, each backward pass updates each parameter of `optimizer` as soon as its gradient is complete, and
/// then frees the gradient. The gradients need only the memory of the largest one instead of all. The loop no longer
/// calls step():
/// ```
/// const auto stepping = optim::step_in_backward(optimizer);
/// for (const Batch& batch : batches) loss_of(batch).backward();
/// ```
/// Each backward pass is a step, so gradient accumulation and norms over all gradients are not available. You can set
/// learning rates between passes. Weights that several layers share are updated once, with the sum of their gradients.
/// If a backward pass throws, the parameters whose gradients had arrived are already updated.
///
/// With `offload_state`, memory holds at most twice `in_flight_bytes` of state instead of all of it. state_dict(),
/// load_state_dict() and save() work as usual; accessing state reads it from the file. The file is deleted with the
/// last tensor in it or when the process ends, even with kill -9. When this object ends, the state stays in the file.
/// Numerics: bit-identical to backward(), step(), zero_grad() (tests/optim/step_in_backward_test.cpp)
/// Cost:     one step() per parameter. With offload_state, each pass reads and writes the state once: for AdamW 16
///           bytes per parameter, with int8 state 4. If the disk is slower than backward, backward waits for it.
/// Threads:  autograd may step parameters of several devices concurrently; otherwise not thread-safe
/// Throws:   c10::ValueError if a parameter already has a gradient (an accumulation is in progress), for LBFGS and
///           sharded optimizers, and if a parameter has another hook on its gradient (DistributedDataParallel, a second
///           step_in_backward). With offload_state, also for parameters on devices other than the CPU, for optimizer
///           classes of your own, and for Adafactor.
///           c10::Error if the folder does not exist or its disk has too little space (the message states the required
///           and the available space).
///           backward() throws with create_graph and if the disk fails. clip_grad_norm_(), clip_and_step() and a
///           GradScaler's unscale_() and step() throw, because the gradients are already freed.
/// Ref:      pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html; arXiv:2104.07857
///           (ZeRO-Infinity)
class StepInBackward {
 public:
  explicit StepInBackward(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options = {});
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  /// All zero without offload_state.
  OffloadedStateStats state_stats() const;
  /// Waits until all changed state is on the disk and out of memory.
  /// Throws: c10::Error if the disk fails
  void wait();

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;
};

/// Params: optimizer – must outlive the result
std::unique_ptr<StepInBackward> step_in_backward(torch::optim::Optimizer& optimizer,
                                                 const StepInBackwardOptions& options = {});

}  // namespace bellows::optim
