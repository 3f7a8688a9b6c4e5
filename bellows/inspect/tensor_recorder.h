#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "bellows/core/model.h"
#include "bellows/inspect/tensor_timeline.h"

namespace bellows::inspect {

/// Records the lifetime of each tensor in a training step. It changes nothing that runs: the same kernels run on the
/// same values.
/// ```
/// inspect::TensorRecorder recorder(model);
/// one_step();             // creates the optimizer's state
/// recorder.begin();
/// one_step();
/// write_text_file("memory.html", recorder.end().to_html("my model"));
/// ```
/// An activation is a tensor that autograd saved (tap::SavedTensorTap). A gradient is the grad() of a parameter when
/// the step begins or ends. Optimizer state is memory that was allocated in a TraceScope "optimizer" and outlives it.
/// Modules are assigned as in docs/inspect.md. Blocks are those of libtorch's CPU allocator, with the limits described
/// in memory.h.
/// Cost:    about 5 µs per operator
/// Threads: create, use and destroy it on one thread; blocks of other threads count for the operator that runs on this
///          thread
/// Throws:  c10::Error as tap::install_cpu_allocator() and tap::install_saved_tensor_taps()
class TensorRecorder {
 public:
  /// Starts to follow blocks. The model's tensors are registered.
  explicit TensorRecorder(const Model& model);
  ~TensorRecorder();
  TensorRecorder(const TensorRecorder&) = delete;
  TensorRecorder& operator=(const TensorRecorder&) = delete;

  /// Registers an existing tensor, such as a master weight or loaded state.
  void add(TensorKind kind, const std::string& name, const at::Tensor& tensor);
  /// Starts the step. Tensors that live now exist from its beginning.
  void begin();
  /// Ends the step.
  /// Throws: c10::Error if begin() was not called; any exception that occurred while recording
  TensorTimeline end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::inspect
