#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "bellows/core/model.h"
#include "bellows/inspect/tensor_timeline.h"

namespace bellows::inspect {

/// Writes down what lives in a step of training, and changes nothing that runs: the same kernels on the same values.
/// ```
/// inspect::TensorRecorder recorder(model);
/// one_step();             // makes the optimizer's state
/// recorder.begin();
/// one_step();
/// write_text_file("memory.html", recorder.end().to_html("my model"));
/// ```
/// An activation is a tensor that autograd saved (tap::SavedTensorTap), a gradient what a parameter's grad() holds when
/// the step begins or ends, optimizer state what was made in a TraceScope "optimizer" and outlives it; modules as in
/// docs/inspect.md. Blocks are those of libtorch's CPU allocator: what memory.h says of it holds here.
/// Cost:    some 5 µs an operator
/// Threads: made, used and destroyed on one thread; blocks of other threads count for the operator that runs on it
/// Throws:  c10::Error – as tap::install_cpu_allocator, tap::install_saved_tensor_taps
class TensorRecorder {
 public:
  /// From now on blocks are followed; the model's tensors are known.
  explicit TensorRecorder(const Model& model);
  ~TensorRecorder();
  TensorRecorder(const TensorRecorder&) = delete;
  TensorRecorder& operator=(const TensorRecorder&) = delete;

  /// Says what a tensor is that is there already: a master weight, a state that was loaded.
  void add(TensorKind kind, const std::string& name, const at::Tensor& tensor);
  /// The step begins: what lives now is there from its beginning on.
  void begin();
  /// The step has ended.
  /// Throws: c10::Error – without begin(); what went wrong while recording
  TensorTimeline end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::inspect
