#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/program/operator_facts.h"
#include "bellows/graph/recording/dispatch_state.h"
#include "bellows/graph/recording/geometry.h"

namespace bellows::graph {

/// A value is what a buffer holds from one write to the next: computed once, never changed. Numbers count up in the order in which
/// a program makes them.
using ValueId = int32_t;
inline constexpr ValueId no_value = -1;  ///< an undefined tensor

/// A value seen through a geometry. A view is no instruction: it is how an operand looks at a value.
struct Operand {
  ValueId value = no_value;
  Geometry geometry{};
  bool operator==(const Operand& other) const = default;
};

/// What a pass puts in the place of operators: computes results from the memory of operands.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// For people: what it holds.
  virtual std::string name() const = 0;
  /// Params:  operands – first bytes of the buffers of the instruction's operands, in order, of all arguments
  ///          results – the same of its results; one that is an update of an operand has that operand's memory
  ///          numbers – of the arguments that are numbers of the program, in order
  ///          scratch – scratch_bytes() bytes, 64-byte aligned, of no content
  /// Threads: as an ATen operator: called on one thread, may use libtorch's others (kernels/parallel.h)
  virtual void run(std::span<void* const> operands, std::span<void* const> results,
                   std::span<const c10::IValue> numbers, void* scratch) const = 0;
  virtual size_t scratch_bytes() const { return 0; }
  /// Whether it computes the same on one thread, while others run other kernels.
  virtual bool may_run_beside() const { return false; }
};

class Program;

/// One thing to run: an operator, or a group of them, or a kernel.
struct Instruction {
  /// Operands (one, or those of a list), a number of the program, or a constant.
  struct Argument {
    OperatorFacts::Kind kind = OperatorFacts::Kind::constant;
    std::vector<Operand> operands{};
    c10::IValue constant{};
    int number = -1;  ///< which of the program's numbers stands in the constant's place; -1: none

    bool is_tensors() const { return kind < OperatorFacts::Kind::number; }
  };
  /// What an operator gives back, as its schema has it. A result whose value is an operand's aliases it.
  struct Result {
    bool list = false;
    std::vector<Operand> operands{};
  };
  /// A buffer that is written: `before` is what it held, `after` what it holds then. Written is what the operand of `before` sees of
  /// it; the rest is carried over. `before` is never read again: both are one piece of memory.
  ///
  /// An operator that writes nothing itself may have updates, too: its result has the value `after`, and is written where it sees it
  /// (functionalize.h makes such ones of in-place operators).
  struct Update {
    ValueId before = no_value, after = no_value;
  };

  const OperatorFacts* op = nullptr;       ///< an operator of libtorch, or of the user: run as it is
  std::shared_ptr<const Program> group{};  ///< or: instructions that a pass has put together, to become one kernel
  std::shared_ptr<const Kernel> kernel{};  ///< or: what runs instead of both
  std::string kind{};                 ///< of a group or kernel: "pointwise", "reduction", …; for people and back ends
  std::vector<Argument> arguments{};  ///< of a group: one for each of its inputs, then one for each of its numbers
  std::vector<Result> results{};      ///< of a group: one for each of its outputs that is no update
  std::vector<Update> updates{};
  /// Instructions that follow each other in one stretch (-1: none) may run at the same time but for those of the same branch (branches.h).
  int stretch = -1, branch = 0;
  int state = 0;                                ///< of libtorch, that it runs in: which of the program's
  c10::ScalarType default_dtype = c10::kFloat;  ///< of that state: what numbers make of integers
};

/// The straight piece of a recording that runs at once, in functional form: instructions in an order in which they may run, the
/// buffers that must be there before, and what is left of it afterwards.
class Program {
 public:
  struct State {
    Ambient ambient{};
    int float32_precision = -1;
    bool operator==(const State& other) const = default;
  };
  struct ValueFacts {
    Geometry geometry{};  ///< as it was made, or first seen
    size_t nbytes = 0;    ///< of the buffer
  };
  /// A buffer that outlives the program.
  struct Output {
    ValueId value = no_value;
    int input = -1;  ///< written back into this input; -1: a new buffer, handed out
  };
  struct Constant {
    ValueId value = no_value;
    at::Tensor tensor{};
  };

  std::vector<State> states{};
  std::vector<ValueFacts> values{};
  std::vector<ValueId> inputs{};       ///< their first values, one a buffer
  std::vector<c10::IValue> numbers{};  ///< inputs that are no tensors, as they were when recorded
  std::vector<Constant> constants{};   ///< values that are known before
  std::vector<Instruction> instructions{};
  std::vector<Output> outputs{};

  /// One line an instruction.
  std::string to_text() const;
  /// Throws: c10::Error – a value that is used before it is made, made twice, or read after an update; an operand beyond its buffer;
  ///         results that do not fit the schema. For passes to be checked with.
  void check() const;
};

namespace detail {
/// One instruction as Program::to_text() writes it, with the geometries of all that it reads and makes.
std::string instruction_text(const Program& program, const Instruction& one);
}  // namespace detail

/// Something that runs a program's calls.
class Executable {
 public:
  virtual ~Executable() = default;
  /// Params:  inputs – the buffers of Program::inputs; those that outputs name are written. May be let go of, each after its last use:
  ///          often nobody else holds them
  ///          numbers – those of Program::numbers, of this call
  ///          outputs – set: the new buffers, one for each of Program::outputs; empty for one that is written back
  /// Throws:  what an operator throws, with its name added; then outputs that were whole before it may be set, and inputs may have been
  ///          written
  /// Threads: one call at a time
  virtual void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
                   std::span<c10::Storage> outputs) = 0;
};

/// Turns programs into something that runs. A region asks once for each program that it meets.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Returns quickly: what takes long is done in the background, while the executable runs the program as it came.
  /// Params:  inputs – the buffers of the call that asks; another call may bring others
  /// Threads: any
  virtual std::shared_ptr<Executable> prepare(Program program, std::span<const c10::Storage> inputs) = 0;
  /// What was done with all programs so far, for explain(): passes and their counts, kernels, bytes.
  virtual std::string to_text() const = 0;
};

}  // namespace bellows::graph
