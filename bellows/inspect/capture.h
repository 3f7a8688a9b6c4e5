#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

struct CaptureOptions {
  /// The operator that computes the output, such as "add", for modules where several operators could be the last one.
  std::string last_operator;
  /// Store a copy of the output. Needed if a later operator changes the output in place.
  bool copy = false;
};

/// Stores the outputs of named modules while the model runs, and their gradients. The model needs no hooks, and its
/// results do not change.
/// ```
/// const auto captured = inspect::capture(model, {"layer3"});
/// const at::Tensor loss = model(images).sum();
/// loss.backward();
/// captured.output("layer3");    // [8, 256, 14, 14]
/// captured.gradient("layer3");  // d loss / d output
/// ```
/// `torch::nn` has no module hooks in C++. The output of a module is found in one of these ways, and never guessed:
/// - A `torch::nn::Sequential` that is called, and its children: what the child returns (tap::SequentialTap).
/// - A layer of `torch::nn` with parameters, such as Linear, BatchNorm2d or LSTM: the result of the operator that reads
///   the parameters.
/// - A module whose forward() has a ModuleScope: the result of the last operator in the scope.
/// - Another module: the operators between the first one that reads its parameters and the next one that reads
///   parameters of another module. The output is the tensor through which all of them affect what follows. If there are
///   several such tensors, for example before and after a ReLU, output() throws and lists the operators that compute
///   them. State one of them as `last_operator`.
///
/// Operators that read nothing but parameters, such as a penalty on weights, are no calls of a module. Compiled functions
/// run no operators of libtorch, so modules inside them cannot be captured.
/// Threads: create and destroy on one thread; the model runs on this thread. Backward may use any thread
/// Cost:    about 2 µs per operator. The captured tensors stay in memory until clear() or the end of the object
class Capture {
 public:
  /// Throws: c10::ValueError if a module does not exist (the message suggests the nearest name)
  Capture(const Model& model, const std::vector<std::string>& modules, const CaptureOptions& options = {});
  ~Capture();
  Capture(Capture&&) noexcept;
  Capture& operator=(Capture&&) = delete;

  /// Returns the output of the module's only call since the start or clear().
  /// Throws: c10::Error if the module was not called or was called several times, if its output is ambiguous, or if the
  ///         output was changed in place since then
  at::Tensor output(std::string_view module) const;
  /// Returns the outputs of all calls, in order. Modules with several results, such as LSTM, contribute the first one.
  std::vector<at::Tensor> outputs(std::string_view module) const;
  /// Returns the gradient of output(), as autograd computed it in the last backward pass.
  /// Throws: c10::Error like output(), and if backward did not reach the output
  at::Tensor gradient(std::string_view module) const;
  /// Forgets all outputs and gradients.
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Starts to capture the outputs of `modules`.
Capture capture(const Model& model, const std::vector<std::string>& modules, const CaptureOptions& options = {});

}  // namespace bellows::inspect
