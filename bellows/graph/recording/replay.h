#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Repeats a function of tensors without calling it. It runs the operators of the example calls on other tensors with
/// the same sizes, strides and dtypes. Branches, loops and numbers stay the same as in the examples. Tensors that the
/// function uses in addition to its arguments, such as weights, are stored by reference. Their current values are read
/// and written.
/// Numerics: bit-identical to the function, except for the operators in docs/tap-bits.md. Results have no gradient
/// Threads:  not thread-safe
class Replay {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<Tensors(const Tensors&)>;

  /// Calls the function at least twice and at most four times, until two consecutive calls have the same operators.
  /// Params: examples – tensors that do not share memory
  ///         backend  – runs the program; if null, a ProgramRunner runs it
  /// Throws: c10::ValueError if two examples share memory, or if the function needs a value on the host, draws random
  ///         numbers, or calls different operators each time. Exceptions of the function propagate to the caller
  Replay(const Function& function, const Tensors& examples, const std::shared_ptr<Backend>& backend = nullptr);
  ~Replay();

  /// Throws: c10::ValueError if the arguments do not match the examples; exceptions of operators
  Tensors operator()(const Tensors& arguments);
  const Program& program() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::graph
