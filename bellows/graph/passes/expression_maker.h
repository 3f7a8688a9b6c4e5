#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::graph::detail {

class Maker;

/// A term under construction. You can compute with it as with a number.
struct Ref {
  Maker* maker = nullptr;
  int term = -1;
};

/// Makes the expression of one instruction. If the instruction is not supported, `bad` is set.
class Maker {
 public:
  using Numbers = Term::Numbers;
  using Loops = std::span<const int>;

  explicit Maker(const Instruction& instruction);

  const Instruction& instruction;
  Expression expression;
  c10::ScalarType type = c10::kFloat;  ///< type of the computation
  bool bad = false;

  /// Returns a result, by default the first. In a pointwise operator, the dims of the first result are the loops.
  const Operand& result(size_t which = 0) const { return instruction.results[which].operands[0]; }
  /// Returns the tensor of an argument, or null if the tensor is undefined.
  const Operand* operand(int argument) const;
  bool has(int argument) const { return operand(argument) != nullptr; }
  /// Returns the value of a constant argument.
  const c10::IValue& constant(int argument) const { return instruction.arguments[argument].constant; }
  bool is_none(int argument) const;

  void set_loops(const Geometry& geometry) { expression.loops.assign(geometry.sizes.begin(), geometry.sizes.end()); }
  /// Loads the tensor of an argument with the type that it has in memory. The tensor's dims are the last loops.
  Ref raw(int argument);
  /// Like raw(argument), but with the tensor's dims along the given loops.
  Ref raw(int argument, Loops loops);
  /// Like raw(argument, loops), but with another view of the tensor's memory.
  Ref raw_as(int argument, const Geometry& seen, Loops loops);
  /// Loads one tensor of a list. All loops are dims of the tensor.
  Ref raw_item(int argument, size_t item);
  /// Like raw(), but cast to the type of the computation.
  Ref in(int argument) { return cast(raw(argument), type); }
  Ref in(int argument, Loops loops) { return cast(raw(argument, loops), type); }
  /// Returns the term of an argument that is a number.
  Ref number(int argument);
  Ref value(double constant) { return add({.function = Function::constant, .type = type, .value = constant}); }
  Ref cast(Ref term, c10::ScalarType to);
  Ref apply(Function function, std::initializer_list<Ref> terms);
  Ref reduce(Function function, Ref term, uint64_t loops);
  /// Returns the number of iterations of these loops.
  double places(uint64_t loops) const;

  /// Stores a result whose dims are the given loops. Does nothing if the result is undefined or empty.
  void store(size_t result, Ref term, Loops loops);
  void store(size_t result, Ref term);
  /// Stores a part of a result, or another view of it. All loops are dims of the part.
  void store_part(size_t result, const Geometry& part, Ref term);
  /// Like above, but the part's dims are the given loops.
  void store_part(size_t result, const Geometry& part, Ref term, Loops loops);
  /// Stores the new content of an argument's tensor. Does nothing if the instruction does not update this tensor.
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

/// Returns the type to which operands of several types are promoted, as in libtorch.
c10::ScalarType common_type(const Instruction& instruction);
/// Returns the name of the pure operator: "aten::add.Tensor" for "aten::add_.Tensor". Other names are returned
/// unchanged.
std::string without_underscore(const OperatorFacts& op);
/// Returns whether generated code supports this memory: on a CPU, of a supported type, without conjugate or negative
/// bit.
bool is_dense(const Geometry& geometry);

}  // namespace bellows::graph::detail
