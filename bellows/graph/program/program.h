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
/// numbered in the order in which a program computes them.
using ValueId = int32_t;
inline constexpr ValueId no_value = -1;      ///< an undefined tensor
inline constexpr ValueId opaque_value = -2;  ///< a tensor that is not plain (is_plain()); only in recordings

/// A value and a geometry through which an instruction reads it. A view is not an instruction, but a different geometry
/// of the operand.
struct Operand {
  ValueId value = no_value;
  Geometry geometry{};
  bool operator==(const Operand& other) const = default;
};

/// Code that replaces operators. It computes the results from the memory of the operands.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Returns a readable description of the kernel.
  virtual std::string name() const = 0;
  /// Params:  operands – pointers to the first bytes of the buffers of all operands of the instruction, in order
  ///          results  – the same for all results. A result that is an update of an operand has the memory of this
  ///                     operand
  ///          numbers  – values of the arguments that refer to Program::numbers, in order
  ///          scratch  – scratch_bytes() uninitialized bytes, 64-byte aligned
  /// Threads: called on one thread, like an ATen operator; may use other threads through kernels/parallel.h
  virtual void run(std::span<void* const> operands, std::span<void* const> results,
                   std::span<const c10::IValue> numbers, void* scratch) const = 0;
  virtual size_t scratch_bytes() const { return 0; }
  /// Returns a text that determines what run() computes from the bytes of its operands, or "". Equal texts mean equal
  /// results, also in other processes on processors of the same kind.
  virtual std::string identity() const { return ""; }
  /// Returns whether run() may be called while other threads run other kernels. run() must then compute the same result
  /// on one thread.
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
    int number = -1;  ///< index in Program::numbers; the number replaces `constant`; -1 if there is none

    bool is_tensors() const { return kind < OperatorFacts::Kind::number; }
  };
  /// One result, as declared in the schema. If a result has the value of an operand, it is an alias of this operand. A
  /// number, or another result that is not a tensor, has no operands and is no list. It only occurs in recordings.
  struct Result {
    bool list = false;
    std::vector<Operand> operands{};

    bool is_tensors() const { return list || !operands.empty(); }
  };
  /// A write to a buffer. `before` is the value of the buffer before the instruction, and `after` is its value
  /// afterwards. Both values share memory, so no later instruction may read `before`. The instruction writes the
  /// elements that the operand of `before` covers. All other elements are preserved.
  ///
  /// An operator that does not write to its arguments can also have updates. Its result then has the value `after`, and
  /// the written elements are those that the result covers. passes/functionalize.h creates such instructions from
  /// in-place operators.
  struct Update {
    ValueId before = no_value, after = no_value;
  };

  const OperatorFacts* op = nullptr;       ///< an operator of libtorch or of the user, executed unchanged
  std::shared_ptr<const Program> group{};  ///< or instructions that a pass has combined into a group
  std::shared_ptr<const Kernel> kernel{};  ///< or code that runs instead of the operator or group
  std::string kind{};  ///< of a group or kernel, such as "pointwise" or "reduction"; used in reports and by back ends
  std::vector<Argument> arguments{};  ///< of a group: one for each input, then one for each number
  std::vector<Result> results{};      ///< of a group: one for each output that is not an update
  std::vector<Update> updates{};
  /// Consecutive instructions with the same stretch may run concurrently unless they are in the same branch
  /// (execution/branches.h). The stretch is -1 if the instruction is in no stretch.
  int stretch = -1, branch = 0;
  int state = 0;  ///< index in Program::states of the state of libtorch in which the instruction runs
  /// Default dtype in this state, to which integers are promoted if they are combined with floating-point numbers.
  c10::ScalarType default_dtype = c10::kFloat;
  /// The instruction must not run before the instruction that precedes it in the program. The pass "recompute" sets this
  /// flag, so that a repeated computation does not move back to the original one.
  bool late = false;
};

/// A recording, or the part of a recording between two barriers, in functional form. It consists of instructions in a
/// valid order of execution, the buffers that they need, and the buffers that outlive the program.
class Program {
 public:
  struct State {
    DispatchState dispatch_state{};
    int float32_precision = -1;
    bool operator==(const State& other) const = default;
  };
  struct ValueFacts {
    Geometry geometry{};  ///< geometry when the value was computed or first used
    size_t nbytes = 0;    ///< size of the buffer
  };
  /// A buffer that outlives the program.
  struct Output {
    ValueId value = no_value;
    int input = -1;  ///< the input to which it is written back; -1 if it is a new buffer for the caller
  };
  struct Constant {
    ValueId value = no_value;
    at::Tensor tensor{};
  };

  std::vector<State> states{};
  std::vector<ValueFacts> values{};
  std::vector<ValueId> inputs{};       ///< the first value of each input buffer
  std::vector<c10::IValue> numbers{};  ///< inputs that are not tensors, with their recorded values
  std::vector<Constant> constants{};   ///< values that are known before the program runs
  std::vector<Instruction> instructions{};
  std::vector<Output> outputs{};

  /// Returns one line per instruction.
  std::string to_text() const;
  /// Params: notes – for each instruction, a text for the end of its line; may be empty
  std::string to_text(std::span<const std::string> notes) const;
  /// Checks that the program is valid. Use this function to test passes.
  /// Throws: c10::Error if a value is used before it is computed, is computed twice, or is read after an update. It is
  ///         also thrown if an operand exceeds its buffer, or results do not match the schema
  void check() const;
};

namespace detail {
/// Returns one instruction in the form that Program::to_text() uses, with the geometries of all operands and results.
std::string instruction_text(const Program& program, const Instruction& one);
}  // namespace detail

/// An executable form of a program.
class Executable {
 public:
  virtual ~Executable() = default;
  /// Params:  inputs – the buffers of Program::inputs. run() writes to the inputs to which outputs are written back. It
  ///                   may release each buffer after the last use. This frees the memory if no other reference exists
  ///          numbers – the values of Program::numbers in this call
  ///          outputs – receives one new buffer for each of Program::outputs, or null for an output that is written
  ///                    back
  /// Throws:  exceptions of operators, with the name of the operator. Outputs that were complete before the error may
  ///          be set, and inputs may have been written
  /// Threads: not thread-safe
  virtual void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
                   std::span<c10::Storage> outputs) = 0;
  /// Returns whether the program is expected to be faster than eager code. If not, run() runs the operators unchanged,
  /// and a region may stop to defer them.
  virtual bool is_worthwhile() const { return true; }
};

/// Converts programs to executables. A region calls prepare() once for each of its programs.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Prepares a program. A back end may do long work in the background. Until this work is complete, the executable
  /// runs the program unchanged.
  /// Params:  inputs – the buffers of the current call. Other calls may use other buffers
  /// Threads: thread-safe
  virtual std::shared_ptr<Executable> prepare(Program program, std::span<const c10::Storage> inputs) = 0;
  /// Returns a summary of all programs for explain(): passes and the number of their changes, kernels, and bytes.
  virtual std::string to_text() const = 0;
};

}  // namespace bellows::graph
