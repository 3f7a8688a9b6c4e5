#pragma once

#include <memory>

#include "bellows/graph/execution/memory_plan.h"
#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Runs any program, one instruction after another except for marked stretches (branches.h). It runs kernels on raw
/// pointers, operators through the dispatcher, and groups without a kernel by their own instructions.
///
/// Tensors, lists and the arena are made once and reused in every call. Operators allocate their own results. Results
/// of kernels get new buffers. Exception: results that are always released before the next program begins, such as
/// gradients that zero_grad() drops. From the third call on, these are lent from the arena, as long as this remains
/// true.
/// Numerics: bit-identical to calling the same operators one by one
class ProgramRunner : public Executable {
 public:
  /// Throws: c10::Error as Program::check()
  explicit ProgramRunner(Program program);
  ~ProgramRunner() override;

  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
           std::span<c10::Storage> outputs) override;

  const Program& program() const;
  const MemoryPlan& memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::graph
