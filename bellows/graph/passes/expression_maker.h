#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::graph::detail {

class Maker;

/// A term that is being made, to be written like a number.
struct Ref {
  Maker* maker = nullptr;
  int term = -1;
};

/// Writes the expression of one instruction. What cannot be written makes it bad.
class Maker {
 public:
  using Numbers = Term::Numbers;
  using Loops = std::span<const int>;

  explicit Maker(const Instruction& instruction);

  const Instruction& instruction;
  Expression expression;
  c10::ScalarType type = c10::kFloat;  ///< that arithmetic is done in
  bool bad = false;

  /// The first result; the loops of a pointwise operator are its dims.
  const Operand& result(size_t which = 0) const { return instruction.results[which].operands[0]; }
  /// The tensor of an argument; null: undefined.
  const Operand* operand(int argument) const;
  bool has(int argument) const { return operand(argument) != nullptr; }
  /// An argument that is a constant.
  const c10::IValue& constant(int argument) const { return instruction.arguments[argument].constant; }
  bool is_none(int argument) const;

  void set_loops(const Geometry& geometry) { expression.loops.assign(geometry.sizes.begin(), geometry.sizes.end()); }
  /// The tensor of an argument, as it is in memory; its dims lie along the last loops.
  Ref raw(int argument);
  /// Its dims lie along these loops.
  Ref raw(int argument, Loops loops);
  /// The same in the type of the arithmetic.
  Ref in(int argument) { return cast(raw(argument), type); }
  Ref in(int argument, Loops loops) { return cast(raw(argument, loops), type); }
  /// A number.
  Ref number(int argument);
  Ref value(double constant) { return add({.function = Function::constant, .type = type, .value = constant}); }
  Ref cast(Ref term, c10::ScalarType to);
  Ref apply(Function function, std::initializer_list<Ref> terms);
  Ref reduce(Function function, Ref term, uint64_t loops);
  /// How many places the loops have.
  double places(uint64_t loops) const;

  /// A result; its dims lie along these loops. Nothing, where it is undefined or empty.
  void store(size_t result, Ref term, Loops loops);
  void store(size_t result, Ref term);
  /// What an update leaves in an argument's tensor. Nothing, where it is not updated.
  void update(int argument, Ref term, Loops loops);

  c10::ScalarType type_of(Ref term) const { return expression.terms[term.term].type; }
  double constant_of(Ref term) const { return expression.terms[term.term].value; }
  bool is_constant(Ref term) const { return expression.terms[term.term].function == Function::constant; }

 private:
  Ref add(Term term);
  int first_operand(int argument) const;
  Numbers strides(const Geometry& geometry, Loops loops);
  std::vector<int> last_loops(const Geometry& geometry);
  void keep(int index, bool update, const Operand& place, Ref term, Loops loops);
};

Ref operator+(Ref a, Ref b);
Ref operator-(Ref a, Ref b);
Ref operator*(Ref a, Ref b);
Ref operator/(Ref a, Ref b);
Ref operator-(Ref a);
Ref operator+(Ref a, double b);
Ref operator-(Ref a, double b);
Ref operator*(Ref a, double b);
Ref operator/(Ref a, double b);
Ref operator+(double a, Ref b);
Ref operator-(double a, Ref b);
Ref operator*(double a, Ref b);
Ref operator/(double a, Ref b);
Ref call(Function function, Ref a);
Ref call(Function function, Ref a, Ref b);
Ref call(Function function, Ref a, double b);
Ref where(Ref condition, Ref a, Ref b);

/// The type that operands of several types are brought to, as for libtorch's operators.
c10::ScalarType common_type(const Instruction& instruction);
/// "aten::add.Tensor" of "aten::add_.Tensor"; the name itself of other operators.
std::string without_underscore(const OperatorFacts& op);
/// Memory that generated code can work on: of a CPU, of numbers that are known here, as they are.
bool is_dense(const Geometry& geometry);

}  // namespace bellows::graph::detail
