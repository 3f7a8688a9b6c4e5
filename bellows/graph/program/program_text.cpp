#include <map>
#include <sstream>

#include "bellows/graph/program/program_text.h"

namespace bellows::graph {
namespace {

/// Writes a program line by line. A value's geometry stands where it is made; an operand that sees it otherwise says how.
class ProgramPrinter {
 public:
  ProgramPrinter(const Program& program, std::string margin) : program_(program), margin_(std::move(margin)) {}

  std::string print_one(const Instruction& one) {
    print(one);
    return out_.str();
  }

  std::string print() {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      line() << definition(program_.inputs[i]) << " = input " << i << "\n";
    }
    for (size_t i = 0; i < program_.numbers.size(); ++i)
      line() << "#" << i << " = number " << program_.numbers[i] << "\n";
    for (const auto& constant : program_.constants) line() << definition(constant.value) << " = constant\n";
    int state = 0;
    for (const Instruction& one : program_.instructions) {
      if (one.state != state) note_state(state, one.state);
      state = one.state;
      print(one);
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
    const std::string change = program_.states[now].ambient.difference(program_.states[before].ambient);
    line() << "# " << (change.empty() ? "another precision of fp32 products" : change) << "\n";
  }

  std::string definition(ValueId value) { return c10::str("%", value, " ", program_.values[value].geometry.text()); }

  void print(const Instruction& one) {
    line();
    const char* separator = "";
    for (const auto& result : one.results) {
      out_ << separator;
      print_operands(result.operands, result.list);
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
    out_ << "\n";
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
    if (operand.value == no_value) {
      out_ << "none";
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

}  // namespace

std::string detail::instruction_text(const Program& program, const Instruction& one) {
  return ProgramPrinter(program, "").print_one(one);
}

std::string Program::to_text() const {
  const std::string head = c10::str("program of ", instructions.size(), " instructions, ", inputs.size(), " inputs, ",
                                    numbers.size(), " numbers, ", outputs.size(), " outputs\n");
  return head + ProgramPrinter(*this, "  ").print();
}

}  // namespace bellows::graph
