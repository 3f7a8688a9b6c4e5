#pragma once

#include <memory>

#include "bellows/graph/execution/memory_plan.h"
#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Runs any program. Instructions run one after another, except in marked stretches (branches.h). Kernels run on raw
/// pointers, and operators run through the dispatcher. A group without a kernel runs its own instructions.
///
/// Tensors, lists and the arena are created once and reused in every call. Operators allocate their results. Results of
/// kernels get new buffers, with one exception. Some results, such as gradients that zero_grad() drops, are released
/// after each call, before any program begins. From the third call on, such a result uses memory of the arena, until a
/// call in which it is not released in time.
/// Numerics: bit-identical to calling the same operators one by one
class ProgramRunner : public Executable {
 public:
  /// Throws: c10::Error if Program::check() throws it
  explicit ProgramRunner(Program program);
  /// Creates a runner for a program as program_builder.h creates it. The program is not checked. All operators allocate
  /// their results, as in eager code, and there is no arena. The runner is therefore created quickly, and also serves a
  /// program that runs only once. If an operator throws, all buffers that earlier operators made are handed out.
  static std::unique_ptr<ProgramRunner> in_order(Program program);
  ~ProgramRunner() override;

  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
           std::span<c10::Storage> outputs) override;

  const Program& program() const;
  const MemoryPlan& memory() const;

 private:
  class Impl;
  explicit ProgramRunner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::graph
