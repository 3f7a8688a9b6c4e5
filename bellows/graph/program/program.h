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

/// A value is the content of a buffer from one write to the next. It is computed once and never changes. Values are
/// numbered in the order in which a program makes them.
using ValueId = int32_t;
inline constexpr ValueId no_value = -1;  ///< an undefined tensor

/// A value seen through a geometry. A view is not an instruction, but the geometry of an operand.
struct Operand {
  ValueId value = no_value;
  Geometry geometry{};
  bool operator==(const Operand& other) const = default;
};

/// Code that replaces operators. It computes results from the memory of operands.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// A readable description of its content.
  virtual std::string name() const = 0;
  /// Params:  operands – the first bytes of the buffers of all operands of the instruction, in order
  ///          results – the same for its results; a result that is an update of an operand has that operand's memory
  ///          numbers – the values of the arguments that are numbers of the program, in order
  ///          scratch – scratch_bytes() uninitialized bytes, 64-byte aligned
  /// Threads: as an ATen operator: called on one thread, may use libtorch's other threads (kernels/parallel.h)
  virtual void run(std::span<void* const> operands, std::span<void* const> results,
                   std::span<const c10::IValue> numbers, void* scratch) const = 0;
  virtual size_t scratch_bytes() const { return 0; }
  /// True if it computes the same result on one thread while other threads run other kernels.
  virtual bool may_run_beside() const { return false; }
};

class Program;

/// One step of a program: an operator, a group, or a kernel.
struct Instruction {
  /// One operand, the operands of a list, a number of the program, or a constant.
  struct Argument {
    OperatorFacts::Kind kind = OperatorFacts::Kind::constant;
    std::vector<Operand> operands{};
    c10::IValue constant{};
    int number = -1;  ///< index in Program::numbers that replaces `constant`; -1: none

    bool is_tensors() const { return kind < OperatorFacts::Kind::number; }
  };
  /// One result, as declared in the schema. A result with the value of an operand aliases that operand.
  struct Result {
    bool list = false;
    std::vector<Operand> operands{};
  };
  /// A written buffer: `before` is its value before the instruction, `after` its value afterwards. The written part is
  /// what the operand of `before` sees; the rest is carried over. No later instruction reads `before`, because both
  /// values share their memory.
  ///
  /// An operator that writes no argument can have updates, too. Its result then has the value `after`, and the written
  /// part is what the result sees. functionalize.h makes such instructions from in-place operators.
  struct Update {
    ValueId before = no_value, after = no_value;
  };

  const OperatorFacts* op = nullptr;       ///< an operator of libtorch or of the user, executed as it is
  std::shared_ptr<const Program> group{};  ///< or: instructions that a pass has grouped, to become one kernel
  std::shared_ptr<const Kernel> kernel{};  ///< or: code that runs instead of the operator or group
  std::string kind{};  ///< of a group or kernel: "pointwise", "reduction", …; for reports and back ends
  std::vector<Argument> arguments{};  ///< of a group: one for each input, then one for each number
  std::vector<Result> results{};      ///< of a group: one for each output that is not an update
  std::vector<Update> updates{};
  /// Consecutive instructions with the same stretch may run at the same time, except those of the same branch
  /// (branches.h). -1: none.
  int stretch = -1, branch = 0;
  int state = 0;  ///< index in Program::states: the state of libtorch that it runs in
  /// Default dtype of that state: the type to which floating-point numbers promote integers
  c10::ScalarType default_dtype = c10::kFloat;
};

/// A recording, or the part of it between two barriers, in functional form. It consists of instructions in a valid
/// order of execution, the buffers that it needs, and the buffers that outlive it.
class Program {
 public:
  struct State {
    DispatchState dispatch_state{};
    int float32_precision = -1;
    bool operator==(const State& other) const = default;
  };
  struct ValueFacts {
    Geometry geometry{};  ///< as made, or as first seen
    size_t nbytes = 0;    ///< size of the buffer
  };
  /// A buffer that outlives the program.
  struct Output {
    ValueId value = no_value;
    int input = -1;  ///< the input that it is written back to; -1: a new buffer for the caller
  };
  struct Constant {
    ValueId value = no_value;
    at::Tensor tensor{};
  };

  std::vector<State> states{};
  std::vector<ValueFacts> values{};
  std::vector<ValueId> inputs{};       ///< the first value of each input buffer
  std::vector<c10::IValue> numbers{};  ///< inputs that are not tensors, with their recorded values
  std::vector<Constant> constants{};   ///< values that are known in advance
  std::vector<Instruction> instructions{};
  std::vector<Output> outputs{};

  /// One line per instruction.
  std::string to_text() const;
  /// Checks that the program is valid. Use it to test passes.
  /// Throws: c10::Error if a value is used before it is made, is made twice, or is read after an update; if an operand
  ///         exceeds its buffer; if results do not match the schema
  void check() const;
};

namespace detail {
/// One instruction as Program::to_text() writes it, with the geometries of all its operands and results.
std::string instruction_text(const Program& program, const Instruction& one);
}  // namespace detail

/// An executable form of a program.
class Executable {
 public:
  virtual ~Executable() = default;
  /// Params:  inputs – the buffers of Program::inputs. Those that outputs are written back to are written. The callee
  ///          may release each buffer after its last use, because often nothing else references it.
  ///          numbers – the values of Program::numbers in this call
  ///          outputs – set to the new buffers, one for each of Program::outputs; empty for outputs that are written
  ///          back
  /// Throws:  exceptions of operators, with the operator's name added. Outputs that were complete before may then be
  ///          set, and inputs may have been written.
  /// Threads: one call at a time
  virtual void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
                   std::span<c10::Storage> outputs) = 0;
};

/// Turns programs into executables. A region calls prepare() once for each of its programs.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Returns quickly. Long work runs in the background; until it is done, the executable runs the program unchanged.
  /// Params:  inputs – the buffers of the current call; other calls may use other buffers
  /// Threads: safe
  virtual std::shared_ptr<Executable> prepare(Program program, std::span<const c10::Storage> inputs) = 0;
  /// Returns: a summary of all programs so far, for explain(): passes and how often they fired, kernels, bytes
  virtual std::string to_text() const = 0;
};

}  // namespace bellows::graph
