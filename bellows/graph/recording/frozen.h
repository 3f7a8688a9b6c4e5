#pragma once

#include <span>
#include <vector>

#include "bellows/graph/execution/program_runner.h"

namespace bellows::graph {

/// Returns for each buffer whether it belongs to one of `tensors`, which keep their values.
std::vector<bool> are_frozen(std::span<const c10::Storage> buffers, std::span<const at::Tensor> tensors);

/// The inputs and outputs that remain in a program, identified by their original indices.
struct Remaining {
  std::vector<int> inputs{}, outputs{};
};
/// Converts inputs that keep their values to constants. Operators that depend only on constants are then computed once.
/// Call this function before the passes.
/// Params: inputs – the buffers of Program::inputs. A constant uses the buffer of its input
///         frozen – whether each input keeps its value. An input that the program writes always stays an input
Remaining freeze_inputs(Program& program, std::span<const c10::Storage> inputs, const std::vector<bool>& frozen);

/// Runs a program after freeze_inputs(). run() accepts all buffers of the original program.
class FrozenRunner : public Executable {
 public:
  FrozenRunner(Program program, Remaining left);
  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
           std::span<c10::Storage> outputs) override;

 private:
  ProgramRunner runner_;
  Remaining left_;
  std::vector<c10::Storage> inputs_, outputs_;  // members, so that their memory is reused by each call
};

}  // namespace bellows::graph
