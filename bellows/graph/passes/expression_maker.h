#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::graph::detail {

class Maker;

/// A term under construction. It can be used like a number.
struct Ref {
  Maker* maker = nullptr;
  int term = -1;
};

/// Makes the expression of one instruction. If it is not supported, `bad` is set.
class Maker {
 public:
  using Numbers = Term::Numbers;
  using Loops = std::span<const int>;

  explicit Maker(const Instruction& instruction);

  const Instruction& instruction;
  Expression expression;
  c10::ScalarType type = c10::kFloat;  ///< type of the arithmetic
  bool bad = false;

  /// The first result. The loops of a pointwise operator are the dims of this result.
  const Operand& result(size_t which = 0) const { return instruction.results[which].operands[0]; }
  /// Returns: the tensor of an argument, or null if it is undefined
  const Operand* operand(int argument) const;
  bool has(int argument) const { return operand(argument) != nullptr; }
  /// Returns: the value of an argument that is a constant
  const c10::IValue& constant(int argument) const { return instruction.arguments[argument].constant; }
  bool is_none(int argument) const;

  void set_loops(const Geometry& geometry) { expression.loops.assign(geometry.sizes.begin(), geometry.sizes.end()); }
  /// The tensor of an argument, as it is in memory. Its dims lie along the last loops.
  Ref raw(int argument);
  /// The same with dims along these loops.
  Ref raw(int argument, Loops loops);
  /// The same, cast to the type of the arithmetic.
  Ref in(int argument) { return cast(raw(argument), type); }
  Ref in(int argument, Loops loops) { return cast(raw(argument, loops), type); }
  /// An argument that is a number.
  Ref number(int argument);
  Ref value(double constant) { return add({.function = Function::constant, .type = type, .value = constant}); }
  Ref cast(Ref term, c10::ScalarType to);
  Ref apply(Function function, std::initializer_list<Ref> terms);
  Ref reduce(Function function, Ref term, uint64_t loops);
  /// Returns: the number of places of these loops
  double places(uint64_t loops) const;

  /// Stores a result whose dims lie along these loops. Does nothing if it is undefined or empty.
  void store(size_t result, Ref term, Loops loops);
  void store(size_t result, Ref term);
  /// Stores the updated content of an argument's tensor. Does nothing if it is not updated.
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

/// The type to which operands of several types are promoted, as in libtorch.
c10::ScalarType common_type(const Instruction& instruction);
/// "aten::add.Tensor" for "aten::add_.Tensor"; the name itself for other operators.
std::string without_underscore(const OperatorFacts& op);
/// True if generated code supports this memory: on a CPU, of a known type, without conjugate or negative bit.
bool is_dense(const Geometry& geometry);

}  // namespace bellows::graph::detail
