#include "bellows/graph/execution/program_runner.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <unordered_map>

#include "bellows/graph/execution/runner_memory.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/program/argument_value.h"
#include "bellows/kernels/parallel.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph {
namespace {

/// An updated value has the same memory before and after the update, or has been copied to its new place.
ValueId in_memory(const Instruction& one, ValueId value) {
  const auto update = std::find_if(one.updates.begin(), one.updates.end(),
                                   [&](const auto& written) { return written.before == value; });
  return update == one.updates.end() ? value : update->after;
}

bool same_layout(const Geometry& geometry, const at::Tensor& tensor) {
  return tensor.sizes() == at::IntArrayRef(geometry.sizes) && tensor.strides() == at::IntArrayRef(geometry.strides) &&
         tensor.storage_offset() == geometry.offset && tensor.dtype() == geometry.dtype;
}

/// The program was made for the recorded strides. If a kernel now returns others, the result is copied.
at::Tensor as_promised(const OperatorFacts& op, const Geometry& geometry, const at::Tensor& tensor) {
  if (same_layout(geometry, tensor)) return tensor;
  TORCH_CHECK(
      tensor.sizes() == at::IntArrayRef(geometry.sizes) && tensor.dtype() == geometry.dtype && geometry.offset == 0,
      "region: ", op.name, " returned ", Geometry::of(tensor).text(), ", expected ", geometry.text(),
      " as in the recording. If its sizes depend on data, add the tag ", "at::Tag::dynamic_output_shape.");
  at::Tensor copy = at::empty_strided(geometry.sizes, geometry.strides, tensor.options());
  copy.copy_(tensor);
  return copy;
}

/// Whether the instruction is attention that takes less time on one thread than it takes to wake a second one. libtorch
/// starts threads for each head. Results do not depend on the number of threads.
bool is_small_attention(const Instruction& one) {
  constexpr int64_t most_elements = 1 << 16;
  if (one.op->name.find("scaled_dot_product") == std::string::npos) return false;
  int64_t elements = 0;
  for (const auto& argument : one.arguments) {
    for (const Operand& operand : argument.operands) {
      if (operand.value >= 0) elements += c10::multiply_integers(operand.geometry.sizes);
    }
  }
  return elements <= most_elements;
}

}  // namespace

namespace detail {

/// The outputs that are lent from the arena: those that were released in time after each of the first two runs. An
/// output that is released late once is not lent any more, because it would keep the whole arena from other programs.
class LentOutputs {
 public:
  /// Call it after each run.
  /// Params:  came_back – for each output, whether it was released in time
  /// Returns: true if the lent outputs change
  bool learn(const std::vector<bool>& came_back) {
    if (++runs_ == 1) {
      lent_ = came_back;
      return false;
    }
    std::vector<bool> next = lent_;
    for (size_t i = 0; i < next.size(); ++i) next[i] = next[i] && came_back[i];
    const bool any = std::find(next.begin(), next.end(), true) != next.end();
    const bool changes = runs_ == 2 ? any : next != lent_;
    lent_ = any ? std::move(next) : std::vector<bool>();
    return changes;
  }
  /// True if the lent outputs can no longer change.
  bool is_settled() const { return runs_ > 1 && lent_.empty(); }
  /// Returns: for each output, whether it is lent; empty: none, or not yet known
  std::vector<bool> lent() const { return runs_ > 1 ? lent_ : std::vector<bool>(); }

 private:
  int runs_ = 0;
  std::vector<bool> lent_;
};

}  // namespace detail

class ProgramRunner::Impl {
 public:
  /// Params: in_order – see ProgramRunner::in_order()
  explicit Impl(Program program, detail::LentOutputs lent_outputs = {}, bool in_order = false)
      : program_(std::move(program)),
        in_order_(in_order),
        lent_outputs_(std::move(lent_outputs)),
        plan_(in_order ? MemoryPlan::without_arena(program_) : MemoryPlan::of(program_, lent_outputs_.lent())),
        memory_(program_, plan_, in_order) {
    prepared_.reserve(program_.instructions.size());
    for (const Instruction& one : program_.instructions) prepared_.push_back(prepare(one));
    find_stretches();
  }

  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers, std::span<c10::Storage> outputs) {
    struct Cleared {
      Impl& self;
      ~Cleared() {
        for (Lane& lane : self.lanes_) lane.stack.clear();
        self.dispatch_scope_.reset();
        self.memory_.clear();
      }
    } cleared{*this};
    has_run_ = true;
    memory_.begin(inputs);
    int at = 0;
    try {
      for (; at < static_cast<int>(prepared_.size()); at = ends_[at]) {
        for (int each = at; each < ends_[at]; ++each) memory_.before(each);
        if (ends_[at] == at + 1)
          run_one(prepared_[at], at, numbers, lanes_[0]);
        else
          run_branches(branches_.at(at), numbers);
        for (int each = at; each < ends_[at]; ++each) memory_.after(each);
      }
    } catch (...) {
      memory_.finish_before(at, outputs);
      throw;
    }
    memory_.finish(outputs);
  }

  /// Returns: a new runner of the same program if the last run changed the lent outputs, otherwise null
  std::unique_ptr<Impl> relent() {
    if (!has_run_ || in_order_ || lent_outputs_.is_settled() || !lent_outputs_.learn(memory_.came_back()))
      return nullptr;
    return std::make_unique<Impl>(program_, lent_outputs_);
  }

  const Program& program() const { return program_; }
  const MemoryPlan& plan() const { return plan_; }

 private:
  /// A tensor that an operator makes: its place among the results, and its value.
  struct MadeTensor {
    size_t result = 0, item = 0;
    const Operand* operand = nullptr;
    at::Tensor target{};  ///< if defined, the tensor is copied there
  };

  /// An instruction and everything for its execution that is the same in each call.
  struct Prepared {
    const Instruction* one = nullptr;
    const c10::OperatorHandle* op = nullptr;
    tap::Stack arguments{};
    std::vector<std::pair<size_t, int>> numbers{};  ///< positions among the arguments
    c10::SmallVector<MadeTensor, 1> made{};
    std::vector<ValueId> operands{}, results{};  ///< for a kernel or a group
    std::unique_ptr<ProgramRunner> group{};
    bool serial = false;  ///< the operator runs on one thread
  };

  /// Working memory for one instruction at a time, one per branch. It is reused between calls.
  struct Lane {
    tap::Stack stack{};
    std::vector<void*> operands{}, results{};
    std::vector<c10::IValue> numbers{};
    std::exception_ptr error = nullptr;
  };

  void find_stretches() {
    const int count = static_cast<int>(program_.instructions.size());
    ends_.resize(count);
    for (int at = 0, end = 0; at < count; at = end) {
      const int stretch = program_.instructions[at].stretch;
      for (end = at + 1; stretch >= 0 && end < count && program_.instructions[end].stretch == stretch;) ++end;
      ends_[at] = end;
      if (end == at + 1) continue;
      auto& branches = branches_[at];
      for (int each = at; each < end; ++each) {
        const auto branch = static_cast<size_t>(program_.instructions[each].branch);
        if (branches.size() <= branch) branches.resize(branch + 1);
        branches[branch].push_back(each);
      }
      lanes_.resize(std::max(lanes_.size(), branches.size()));
    }
  }

  Prepared prepare(const Instruction& one) {
    Prepared made{.one = &one};
    if (one.kernel || one.group) {
      if (!one.kernel) made.group = std::make_unique<ProgramRunner>(*one.group);
      for (const auto& argument : one.arguments) {
        for (const Operand& operand : argument.operands) made.operands.push_back(in_memory(one, operand.value));
      }
      for (const auto& result : one.results) {
        for (const Operand& operand : result.operands) made.results.push_back(operand.value);
      }
      return made;
    }
    const OperatorFacts* in_place = one.updates.empty() || !one.op->writes.empty() ? nullptr : in_place_of(one);
    const OperatorFacts* const out_form = in_order_ ? nullptr : out_form_of(one);
    made.op = (in_place ? in_place : out_form ? out_form : one.op)->handle.get();
    made.serial = is_small_attention(one);
    made.arguments.reserve(one.arguments.size() + 1);
    for (const auto& argument : one.arguments) {
      if (argument.number >= 0) made.numbers.emplace_back(made.arguments.size(), argument.number);
      made.arguments.push_back(value_of(one, argument));
    }
    if (out_form)
      made.arguments.emplace_back(seen(one.results[0].operands[0]));
    else if (!in_place)
      note_made(one, made);
    return made;
  }

  c10::IValue value_of(const Instruction& one, const Instruction::Argument& argument) {
    return detail::argument_value(argument, [&](const Operand& operand) {
      return memory_.seen(in_memory(one, operand.value), operand.geometry);
    });
  }
  at::Tensor seen(const Operand& operand) { return memory_.seen(operand.value, operand.geometry); }

  /// Notes values that begin here, and updates by an operator that writes no argument.
  void note_made(const Instruction& one, Prepared& made) {
    const auto read = [&](ValueId value) {
      return std::any_of(one.arguments.begin(), one.arguments.end(), [&](const auto& argument) {
        return std::any_of(argument.operands.begin(), argument.operands.end(),
                           [&](const Operand& operand) { return operand.value == value; });
      });
    };
    const auto updated = [&](ValueId value) {
      return std::any_of(one.updates.begin(), one.updates.end(),
                         [&](const auto& update) { return update.after == value; });
    };
    c10::SmallVector<ValueId, 4> known;
    for (size_t i = 0; i < one.results.size(); ++i) {
      for (size_t item = 0; item < one.results[i].operands.size(); ++item) {
        const Operand& operand = one.results[i].operands[item];
        const bool again = std::find(known.begin(), known.end(), operand.value) != known.end();
        if (operand.value == no_value || again || read(operand.value)) continue;
        const bool written = updated(operand.value);
        if (written && !one.op->writes.empty()) continue;
        known.push_back(operand.value);
        made.made.push_back({i, item, &operand, written ? seen(operand) : at::Tensor()});
      }
    }
  }

  /// Runs each branch on a thread of libtorch, in the state of this thread. All branches end before the first error, in
  /// program order, is thrown.
  void run_branches(const std::vector<std::vector<int>>& branches, std::span<const c10::IValue> numbers) {
    for (const auto& branch : branches) {
      const auto of_state = std::find_if(branch.begin(), branch.end(), [&](int at) { return prepared_[at].one->op; });
      if (of_state != branch.end()) enter(prepared_[*of_state].one->state);
    }
    const at::ThreadLocalState state;
    std::vector<int> failed(branches.size(), static_cast<int>(prepared_.size()));
    kernels::parallel_operators(static_cast<int64_t>(branches.size()), [&](int64_t i) {
      const at::ThreadLocalStateGuard same(state);
      for (const int at : branches[i]) {
        try {
          run_one(prepared_[at], at, numbers, lanes_[i]);
        } catch (...) {
          lanes_[i].error = std::current_exception();
          failed[i] = at;
          return;
        }
      }
    });
    const auto first = std::min_element(failed.begin(), failed.end()) - failed.begin();
    const std::exception_ptr error = lanes_[first].error;
    for (Lane& lane : lanes_) lane.error = nullptr;
    if (error) std::rethrow_exception(error);
  }

  void run_one(const Prepared& prepared, int at, std::span<const c10::IValue> numbers, Lane& lane) {
    const Instruction& one = *prepared.one;
    if (one.kernel) {
      run_kernel(prepared, at, numbers, lane);
    } else if (one.group) {
      run_group(prepared, numbers);
    } else {
      try {
        if (one.stretch < 0) enter(one.state);
        run_operator(prepared, numbers, lane.stack);
      } catch (c10::Error& error) {
        error.add_context("Running " + one.op->name +
                          ", which was called earlier in its region. This trace does not show its caller.");
        throw;
      }
    }
  }

  void run_operator(const Prepared& prepared, std::span<const c10::IValue> numbers, tap::Stack& stack) {
    stack.assign(prepared.arguments.begin(), prepared.arguments.end());
    for (const auto& [place, number] : prepared.numbers) stack[place] = numbers[number];
    {
      const kernels::SerialOperatorGuard small(prepared.serial);
      tap::OpCall(*prepared.op).next(stack);
    }
    for (const MadeTensor& made : prepared.made) {
      const c10::IValue& result = stack[made.result];
      const at::Tensor& tensor = result.isTensor() ? result.toTensor() : result.toListRef()[made.item].toTensor();
      if (made.target.defined()) {
        made.target.copy_(tensor);
      } else {
        memory_.put(made.operand->value, as_promised(*prepared.one->op, made.operand->geometry, tensor).storage());
      }
    }
    stack.clear();
  }

  void run_kernel(const Prepared& prepared, int at, std::span<const c10::IValue> numbers, Lane& lane) {
    lane.operands.clear();
    lane.results.clear();
    lane.numbers.clear();
    for (const ValueId value : prepared.operands) lane.operands.push_back(data(value));
    for (const ValueId value : prepared.results) lane.results.push_back(data(value));
    for (const auto& argument : prepared.one->arguments) {
      if (argument.number >= 0) lane.numbers.push_back(numbers[argument.number]);
    }
    prepared.one->kernel->run(lane.operands, lane.results, lane.numbers, memory_.scratch(at));
  }
  void* data(ValueId value) const { return value == no_value ? nullptr : memory_.data(value); }

  void run_group(const Prepared& prepared, std::span<const c10::IValue> numbers) {
    const Instruction& one = *prepared.one;
    const Program& group = *one.group;
    std::vector<c10::Storage> inputs, outputs(group.outputs.size());
    std::vector<c10::IValue> own_numbers;
    inputs.reserve(group.inputs.size());
    own_numbers.reserve(group.numbers.size());
    for (const ValueId value : prepared.operands) inputs.push_back(memory_.storage(value));
    for (size_t i = group.inputs.size(); i < one.arguments.size(); ++i)
      own_numbers.push_back(one.arguments[i].number >= 0 ? numbers[one.arguments[i].number]
                                                         : one.arguments[i].constant);
    dispatch_scope_.reset();
    prepared.group->run(inputs, own_numbers, outputs);
    size_t result = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (group.outputs[i].input < 0) memory_.put(prepared.results[result++], outputs[i]);
    }
  }

  void enter(int state) {
    if (dispatch_scope_ && state_ == state) return;
    dispatch_scope_.reset();
    dispatch_scope_.emplace(program_.states[state].dispatch_state, program_.states[state].float32_precision);
    state_ = state;
  }

  const Program program_;
  const bool in_order_;
  detail::LentOutputs lent_outputs_;
  bool has_run_ = false;
  const MemoryPlan plan_;
  detail::RunnerMemory memory_;
  std::vector<Prepared> prepared_;
  std::optional<DispatchStateScope> dispatch_scope_;
  int state_ = -1;
  std::vector<int> ends_;  ///< for each instruction that begins a stretch, or is in none: the next such instruction
  std::unordered_map<int, std::vector<std::vector<int>>> branches_;  ///< by the first instruction of a stretch
  std::vector<Lane> lanes_{1};
};

ProgramRunner::ProgramRunner(Program program) {
  program.check();
  impl_ = std::make_unique<Impl>(std::move(program));
}
ProgramRunner::ProgramRunner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProgramRunner::~ProgramRunner() = default;

std::unique_ptr<ProgramRunner> ProgramRunner::in_order(Program program) {
  auto impl = std::make_unique<Impl>(std::move(program), detail::LentOutputs(), true);
  return std::unique_ptr<ProgramRunner>(new ProgramRunner(std::move(impl)));
}

void ProgramRunner::run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
                        std::span<c10::Storage> outputs) {
  if (auto other = impl_->relent()) impl_ = std::move(other);
  impl_->run(inputs, numbers, outputs);
}

const Program& ProgramRunner::program() const {
  return impl_->program();
}

const MemoryPlan& ProgramRunner::memory() const {
  return impl_->plan();
}

}  // namespace bellows::graph
