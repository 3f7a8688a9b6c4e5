#pragma once

#include <memory>

#include "bellows/graph/execution/memory_plan.h"
#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Runs any program, one instruction after the other but for marked stretches (branches.h): kernels on raw pointers, operators through the dispatcher, groups without a
/// kernel by their own instructions.
///
/// Tensors, lists and the arena are made once and used in every call; what operators make themselves is theirs. Results of kernels get
/// new buffers, but for those that nobody ever holds when the next program begins to run, as gradients that zero_grad() drops: they
/// are lent out of the arena from the third call on, for as long as that stays so.
/// Numerics: the bits of the same operators called one by one
class ProgramRunner : public Executable {
 public:
  /// Throws: c10::Error – as Program::check()
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
