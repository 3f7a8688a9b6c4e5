#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "bellows/core/model.h"
#include "bellows/inspect/tensor_timeline.h"

namespace bellows::inspect {

/// Records the lifetime of each tensor in a training step. Recording does not change the step: the same kernels run on
/// the same values.
/// ```
/// inspect::TensorRecorder recorder(model);
/// one_step();             // creates the optimizer's state
/// recorder.begin();
/// one_step();
/// write_text_file("memory.html", recorder.end().to_html("my model"));
/// ```
/// An activation is a tensor that autograd saved (tap::SavedTensorTap). A tensor counts as a gradient if it is the
/// grad() of a parameter when the step begins or ends. Optimizer state is memory that was allocated in a TraceScope
/// "optimizer" and still exists after this scope. docs/inspect.md describes how modules are assigned. Blocks are those
/// of libtorch's CPU allocator, with the limitations that memory.h describes.
/// Cost:    about 5 µs per operator
/// Threads: create, use and destroy the recorder on one thread. Blocks that other threads allocate are attributed to
///          the operator that runs on this thread
/// Throws:  c10::Error like tap::install_cpu_allocator() and tap::install_saved_tensor_taps()
class TensorRecorder {
 public:
  /// Starts to record blocks, and registers the tensors of the model.
  explicit TensorRecorder(const Model& model);
  ~TensorRecorder();
  TensorRecorder(const TensorRecorder&) = delete;
  TensorRecorder& operator=(const TensorRecorder&) = delete;

  /// Registers an existing tensor, such as a master weight or a loaded optimizer state.
  void add(TensorKind kind, const std::string& name, const at::Tensor& tensor);
  /// Starts the step. Tensors that exist at this time count as existing from the start of the step.
  void begin();
  /// Ends the step and returns the recorded timeline.
  /// Throws: c10::Error if begin() was not called; any exception that occurred while recording
  TensorTimeline end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::inspect
