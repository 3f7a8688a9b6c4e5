#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// A function of tensors that runs without being called: what it did for examples is done again, on other tensors of the same
/// sizes, strides and dtypes. Its branches, its loops and the numbers it used are those that the examples took. Tensors that it knows
/// by itself (weights) are kept, and read, and written, as they are at the time.
/// Numerics: the bits of the function, but for docs/tap-bits.md; results have no gradient
/// Threads:  one call at a time
class Replay {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<Tensors(const Tensors&)>;

  /// Calls the function twice, or until it does as in the call before, at most four times.
  /// Params:  examples – with buffers of their own
  ///          backend – runs the program; null: a ProgramRunner does
  /// Throws:  c10::ValueError – the function needs a value on the host, draws random numbers, or does something else in each call; an
  ///          example that shares memory with another one; what the function throws
  Replay(const Function& function, const Tensors& examples, const std::shared_ptr<Backend>& backend = nullptr);
  ~Replay();

  /// Throws: c10::ValueError – arguments that are not as the examples were; what operators throw
  Tensors operator()(const Tensors& arguments);
  const Program& program() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::graph
