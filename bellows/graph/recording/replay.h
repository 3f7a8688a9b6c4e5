#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// A function of tensors that is repeated without being called. It repeats the operators of the example calls on other
/// tensors of the same sizes, strides and dtypes. Branches, loops and numbers stay as in the examples. Tensors that the
/// function uses itself, such as weights, are kept by reference: their current values are read and written.
/// Numerics: bit-identical to the function, except for docs/tap-bits.md; results have no gradient
/// Threads:  one call at a time
class Replay {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<Tensors(const Tensors&)>;

  /// Calls the function until a call repeats the previous one, at least twice and at most four times.
  /// Params: examples – tensors that share no memory
  ///         backend – runs the program; null: a ProgramRunner
  /// Throws: c10::ValueError if the function needs a value on the host, draws random numbers, or differs in each call;
  ///         if two examples share memory; exceptions of the function
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
