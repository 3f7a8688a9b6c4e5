#include "bellows/graph/program/program.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace bellows::graph {
namespace {

/// Writes a program line by line. A value's geometry is shown where it is made, and where an operand sees it
/// differently.
class ProgramPrinter {
 public:
  ProgramPrinter(const Program& program, std::string margin) : program_(program), margin_(std::move(margin)) {}

  std::string print_one(const Instruction& one) {
    print(one);
    return out_.str();
  }

  /// Params: notes – for each instruction, a text for the end of its line; may be empty
  std::string print(std::span<const std::string> notes = {}) {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      line() << definition(program_.inputs[i]) << " = input " << i << "\n";
    }
    for (size_t i = 0; i < program_.numbers.size(); ++i)
      line() << "#" << i << " = number " << program_.numbers[i] << "\n";
    for (const auto& constant : program_.constants) line() << definition(constant.value) << " = constant\n";
    int state = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& one = program_.instructions[i];
      if (one.state != state) note_state(state, one.state);
      state = one.state;
      print(one, notes.empty() ? "" : notes[i]);
    }
    line() << "return ";
    const char* separator = "";
    for (const auto& output : program_.outputs) {
      out_ << separator << "%" << output.value;
      if (output.input >= 0) out_ << " to input " << output.input;
      separator = ", ";
    }
    out_ << "\n";
    return out_.str();
  }

 private:
  std::ostream& line() { return out_ << margin_; }

  void note_state(int before, int now) {
    const std::string change = program_.states[now].dispatch_state.difference(program_.states[before].dispatch_state);
    line() << "# " << (change.empty() ? "a different precision of fp32 matmuls" : change) << "\n";
  }

  std::string definition(ValueId value) { return c10::str("%", value, " ", program_.values[value].geometry.text()); }

  void print(const Instruction& one, const std::string& note = "") {
    line();
    const char* separator = "";
    for (const auto& result : one.results) {
      out_ << separator;
      if (result.is_tensors())
        print_operands(result.operands, result.list);
      else
        out_ << "host";
      separator = ", ";
    }
    out_ << (one.results.empty() ? "" : " = ") << name(one) << "(";
    separator = "";
    for (const auto& argument : one.arguments) {
      out_ << separator;
      print(argument);
      separator = ", ";
    }
    out_ << ")";
    for (const auto& update : one.updates) out_ << " updates %" << update.before << " to %" << update.after;
    if (one.group) out_ << " {\n" << ProgramPrinter(*one.group, margin_ + "  ").print() << margin_ << "}";
    out_ << note << "\n";
  }

  static std::string name(const Instruction& one) {
    std::string result = one.op ? one.op->name : one.kind.empty() ? "group" : one.kind;
    if (one.kernel) result += " [" + one.kernel->name() + "]";
    return result;
  }

  void print(const Instruction::Argument& argument) {
    if (argument.number >= 0) {
      out_ << "#" << argument.number;
    } else if (argument.is_tensors()) {
      print_operands(argument.operands, argument.kind != OperatorFacts::Kind::tensor);
    } else {
      out_ << argument.constant;
    }
  }

  void print_operands(const std::vector<Operand>& operands, bool list) {
    if (list) out_ << "[";
    const char* separator = "";
    for (const Operand& operand : operands) {
      out_ << separator;
      print(operand);
      separator = ", ";
    }
    if (list) out_ << "]";
  }

  void print(const Operand& operand) {
    if (operand.value < 0) {
      out_ << (operand.value == no_value ? "none" : "opaque");
      return;
    }
    out_ << "%" << operand.value;
    const Geometry& made = program_.values[operand.value].geometry;
    const bool first = !seen_[operand.value];
    seen_[operand.value] = true;
    if (first || !(operand.geometry == made)) out_ << " " << operand.geometry.text();
  }

  const Program& program_;
  const std::string margin_;
  std::map<ValueId, bool> seen_;
  std::ostringstream out_;
};

/// Goes through a program once and tracks which values may be read.
class Checker {
 public:
  explicit Checker(const Program& program) : program_(program), states_(program.values.size(), State::unmade) {}

  void run() {
    for (const ValueId input : program_.inputs) make(input, "an input");
    for (const Program::Constant& constant : program_.constants) {
      make(constant.value, "a constant");
      expect(constant.tensor.defined(), "a constant without a tensor");
    }
    for (at_ = 0; at_ < program_.instructions.size(); ++at_) check(program_.instructions[at_]);
    std::vector<bool> written(program_.inputs.size());
    for (const Program::Output& output : program_.outputs) {
      expect_live(output.value, "an output");
      if (output.input < 0) continue;
      expect(output.input < static_cast<int>(written.size()) && !written[output.input],
             "an output to an input that does not exist, or that another output writes to");
      written[output.input] = true;
    }
  }

 private:
  enum class State : uint8_t { unmade, live, overwritten };

  void expect(bool condition, const std::string& what) const {
    if (condition) return;
    const bool inside = at_ < program_.instructions.size();
    TORCH_CHECK(false, "Program::check: ", what,
                inside ? c10::str(" (instruction ", at_, ", ", name(program_.instructions[at_]), ").") : ".");
  }
  static std::string name(const Instruction& one) {
    if (one.op) return one.op->name;
    return one.kernel ? one.kernel->name() : one.kind;
  }

  void make(ValueId value, const char* what) {
    expect(value >= 0 && value < static_cast<ValueId>(states_.size()), c10::str(what, " has no facts: %", value));
    expect(states_[value] == State::unmade, c10::str(what, " is computed twice: %", value));
    states_[value] = State::live;
  }
  void expect_live(ValueId value, const char* what) const {
    expect(value >= 0 && value < static_cast<ValueId>(states_.size()), c10::str(what, " has no facts: %", value));
    expect(states_[value] != State::unmade, c10::str(what, " is used before it is computed: %", value));
    expect(states_[value] != State::overwritten, c10::str(what, " is used after its update: %", value));
  }
  void expect_inside(const Operand& operand) const {
    const Geometry& seen = operand.geometry;
    const auto negative = [](int64_t number) { return number < 0; };
    expect(seen.sizes.size() == seen.strides.size() && seen.offset >= 0 &&
               std::none_of(seen.sizes.begin(), seen.sizes.end(), negative) &&
               std::none_of(seen.strides.begin(), seen.strides.end(), negative),
           c10::str("%", operand.value, " has an impossible geometry"));
    const size_t reach = operand.geometry.reach(), there = program_.values[operand.value].nbytes;
    expect(reach <= there,
           c10::str("%", operand.value, " as ", operand.geometry.text(), " reaches to byte ", reach, " of ", there));
  }

  void check(const Instruction& one) {
    expect(one.op || one.group || one.kernel, "an empty instruction");
    expect(one.state >= 0 && one.state < static_cast<int>(program_.states.size()), "a state that does not exist");
    for (const auto& argument : one.arguments) check(argument);
    if (one.op) check_schema(one);
    if (one.group) check_group(one);
    for (const auto& update : one.updates) {
      expect_live(update.before, "an updated value");
      states_[update.before] = State::overwritten;
      make(update.after, "an update");
    }
    std::vector<ValueId> made;
    for (const auto& result : one.results) {
      for (const Operand& operand : result.operands) check_result(one, operand, made);
    }
  }

  void check(const Instruction::Argument& argument) const {
    expect(argument.number < static_cast<int>(program_.numbers.size()), "a number that does not exist");
    expect(argument.number < 0 || argument.operands.empty(), "an argument that is both a number and a tensor");
    expect(argument.kind != OperatorFacts::Kind::tensor || argument.operands.size() == 1,
           "an argument that does not have exactly one tensor");
    for (const Operand& operand : argument.operands) {
      if (operand.value == no_value) continue;
      expect_live(operand.value, "an operand");
      expect_inside(operand);
    }
  }

  void check_result(const Instruction& one, const Operand& operand, std::vector<ValueId>& made) {
    if (operand.value == no_value) return;
    if (states_.at(operand.value) == State::unmade) {
      make(operand.value, "a result");
      made.push_back(operand.value);
    }
    expect_live(operand.value, "a result");
    expect_inside(operand);
    const bool own = std::find(made.begin(), made.end(), operand.value) != made.end() ||
                     std::any_of(one.updates.begin(), one.updates.end(),
                                 [&](const auto& update) { return update.after == operand.value; });
    expect(own || reads(one, operand.value), c10::str("a result that another instruction computes: %", operand.value));
  }
  static bool reads(const Instruction& one, ValueId value) {
    return std::any_of(one.arguments.begin(), one.arguments.end(), [&](const Instruction::Argument& argument) {
      return std::any_of(argument.operands.begin(), argument.operands.end(),
                         [&](const Operand& operand) { return operand.value == value; });
    });
  }

  void check_schema(const Instruction& one) const {
    const OperatorFacts& op = *one.op;
    expect(one.arguments.size() == op.arguments.size(),
           c10::str(one.arguments.size(), " arguments instead of ", op.arguments.size()));
    expect(one.results.size() == op.results, c10::str(one.results.size(), " results instead of ", op.results));
    for (const auto& result : one.results) {
      expect(result.list || result.operands.size() == 1 || (op.host_value && result.operands.empty()),
             "a result that does not have exactly one tensor");
    }
    for (const int written : op.writes) {
      for (const Operand& operand : one.arguments[written].operands) {
        const bool said = operand.value == no_value ||
                          std::any_of(one.updates.begin(), one.updates.end(),
                                      [&](const auto& update) { return update.before == operand.value; });
        expect(said, c10::str("argument ", written, " is written, but no update declares it"));
      }
    }
  }

  void check_group(const Instruction& one) const {
    const Program& group = *one.group;
    expect(one.arguments.size() == group.inputs.size() + group.numbers.size(),
           c10::str(one.arguments.size(), " arguments for a group of ", group.inputs.size(), " inputs and ",
                    group.numbers.size(), " numbers"));
    const auto written = static_cast<size_t>(std::count_if(group.outputs.begin(), group.outputs.end(),
                                                           [](const auto& output) { return output.input >= 0; }));
    expect(one.updates.size() == written && one.results.size() == group.outputs.size() - written,
           c10::str(one.results.size(), " results and ", one.updates.size(), " updates of a group that has ",
                    group.outputs.size() - written, " and ", written));
    for (size_t i = 0; i < group.inputs.size(); ++i)
      expect(one.arguments[i].operands.size() == 1, c10::str("argument ", i, " of a group is not one tensor"));
    for (const Program::Output& output : group.outputs) {
      if (output.input < 0) continue;
      const ValueId operand = one.arguments[output.input].operands[0].value;
      expect(std::any_of(one.updates.begin(), one.updates.end(),
                         [&](const auto& update) { return update.before == operand; }),
             c10::str("a group writes its input ", output.input, ", but no update declares it"));
    }
    group.check();
  }

  const Program& program_;
  std::vector<State> states_;
  size_t at_ = SIZE_MAX;
};

}  // namespace

std::string detail::instruction_text(const Program& program, const Instruction& one) {
  return ProgramPrinter(program, "").print_one(one);
}

std::string Program::to_text() const {
  return to_text({});
}

std::string Program::to_text(std::span<const std::string> notes) const {
  const std::string head = c10::str("program of ", instructions.size(), " instructions, ", inputs.size(), " inputs, ",
                                    numbers.size(), " numbers, ", outputs.size(), " outputs\n");
  return head + ProgramPrinter(*this, "  ").print(notes);
}

void Program::check() const {
  Checker(*this).run();
}

}  // namespace bellows::graph
