#pragma once

#include <span>
#include <vector>

#include "bellows/graph/execution/program_runner.h"

namespace bellows::graph {

/// Which of these buffers are those of tensors that keep their values.
std::vector<bool> are_frozen(std::span<const c10::Storage> buffers, std::span<const at::Tensor> tensors);

/// What is left of a program's inputs and outputs, by their old numbers.
struct Remaining {
  std::vector<int> inputs{}, outputs{};
};
/// Makes constants of inputs that keep their values: what depends on them only is computed once. Before passes.
/// Params:  inputs – the buffers of Program::inputs; a constant holds its buffer
///          frozen – which of them keep their values; one that the program writes stays an input all the same
Remaining freeze_inputs(Program& program, std::span<const c10::Storage> inputs, const std::vector<bool>& frozen);

/// Runs what freeze_inputs() has left in the place of the whole program: is given all buffers, as the whole one would be.
class FrozenRunner : public Executable {
 public:
  FrozenRunner(Program program, Remaining left);
  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
           std::span<c10::Storage> outputs) override;

 private:
  ProgramRunner runner_;
  Remaining left_;
  std::vector<c10::Storage> inputs_, outputs_;  // keep their memory between calls
};

}  // namespace bellows::graph
