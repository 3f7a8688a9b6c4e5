#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>

namespace bellows::optim {

/// Params: offload_state – the optimizer's state, with master weights, lies in a nameless file between two steps of a parameter.
///                 All of its room on the disk is taken beforehand. What the next gradients will need is read while backward
///                 computes, in the order of the pass before, and what was changed is written behind it
///         folder – of that file; empty: $TMPDIR, or /tmp. Some systems keep /tmp in memory
///         in_flight_bytes – most state that is read ahead, and that waits to be written, each
struct StepInBackwardOptions {
  bool offload_state = false;
  std::string folder = {};
  int64_t in_flight_bytes = 256 << 20;
};

struct OffloadedStateStats {
  int64_t file_bytes = 0, resident_bytes = 0;  ///< of the file; of it in memory now
};

/// While it lives, each backward pass steps `optimizer`'s parameters one by one, each as soon as its gradient is
/// complete, and lets go of the gradient at once: gradients take the memory of the largest one instead of all. A loop
/// has no step() left:
/// ```
/// const auto stepping = optim::step_in_backward(optimizer);
/// for (const Batch& batch : batches) loss_of(batch).backward();
/// ```
/// Each backward pass is a step: there is nothing to accumulate, and no norm over all gradients. Learning rates may be set
/// between passes. Weights that several layers share are stepped once, with the sum of their gradients. A backward pass
/// that throws leaves the parameters stepped whose gradients had arrived.
///
/// With `offload_state` memory holds `in_flight_bytes` of state twice in place of all of it. Everything else sees the state as it
/// always is (state_dict(), load_state_dict(), save()), and what it looks at is read for it. The file goes with the last
/// tensor that lies in it, or with the process, kill -9 too; when this object ends the state stays there.
/// Numerics: the bits of backward(), step(), zero_grad() (tests/optim/step_in_backward_test.cpp)
/// Cost:     a step() over one parameter for each. With offload_state, state is read and written once a pass: AdamW's 16 bytes a
///           parameter, 4 of int8's; where the disk is slower than backward, backward waits for it
/// Threads:  safe where autograd steps parameters of several devices at once; one owner
/// Throws:   c10::ValueError – gradients that are there already (an accumulation goes on); LBFGS, a sharded optimizer; a
///           parameter with another hook behind its gradient (DistributedDataParallel, a second step_in_backward); with
///           offload_state one on another device than the CPU, an optimizer of a class of your own, Adafactor.
///           c10::Error – no such folder, or no room on its disk: how much is needed, and how much there is.
///           backward(): with create_graph; a failing disk. clip_grad_norm_(), clip_and_step() and a GradScaler's unscale_() and
///           step(): the gradients that they ask for are gone
/// Ref:      pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html; arXiv:2104.07857 (ZeRO-Infinity)
class StepInBackward {
 public:
  explicit StepInBackward(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options = {});
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  /// Zeros without offload_state.
  OffloadedStateStats state_stats() const;
  /// Until all state that was changed is on the disk and out of memory.
  /// Throws: c10::Error – a failing disk
  void wait();

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;
};

/// Params: optimizer – has to outlive what is returned
std::unique_ptr<StepInBackward> step_in_backward(torch::optim::Optimizer& optimizer,
                                                 const StepInBackwardOptions& options = {});

}  // namespace bellows::optim
