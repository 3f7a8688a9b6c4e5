#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// The operations of generated code. Each iteration of the loops executes them on scalars. Functions that also exist in
/// <cmath> have the same name and meaning. `maximum`, `minimum` and the corresponding reductions propagate NaN. `round`
/// rounds halves to even. Comparisons return bool.
enum class Function : uint8_t {
  // Leaves
  load,      ///< the element of operand `index` in this iteration
  number,    ///< the number `index`, which the caller passes
  constant,  ///< `value`
  // Functions of one term
  cast,  ///< to `type`, like static_cast; to bool: whether the term is not 0; to bf16 and half: rounded
  // clang-format off
  neg, abs, sign, exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh,
  cosh, tanh, erf, erfc, floor, ceil, round, trunc, isnan, logical_not, bitwise_not,
  // Functions of two terms
  add, sub, mul, div, fmod, pow, atan2, maximum, minimum, eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor,
  bitwise_and, bitwise_or, bitwise_xor,
  // Functions of three terms
  where,  ///< first ? second : third
  // Reductions of one term over the loops in `reduced`. The result is the same in all iterations of these loops.
  sum, product, max, min, any, all,
  // clang-format on
};

/// Returns the number of terms that a function has as arguments.
int arity(Function function);
bool is_reduction(Function function);
const char* name_of(Function function);

/// One step of an expression. Its arguments are earlier terms.
struct Term {
  using Numbers = c10::SmallVector<int64_t, 6>;

  Function function = Function::constant;
  /// Type of the computation and of the result. Only loads and casts can have the types bf16 and half.
  c10::ScalarType type = c10::kFloat;
  std::array<int, 3> terms{-1, -1, -1};
  double value = 0;
  /// Of a load: index of the operand among the operands of all arguments. Of a number: index of the argument, or index
  /// of the group's number.
  int index = -1;
  Numbers strides{};     ///< of a load: in elements, one per loop; 0 along loops that do not change the address
  int64_t offset = 0;    ///< of a load: in elements of `type`, from the first byte of the buffer
  uint64_t reduced = 0;  ///< of a reduction: bit i is set for loop i
  bool operator==(const Term& other) const = default;
};

/// Stores a term in memory.
struct Store {
  int term = -1;
  int index = -1;                      ///< index among all results; of an update: index of the operand
  bool update = false;                 ///< writes into the buffer of an operand
  c10::ScalarType type = c10::kFloat;  ///< type in memory, to which the term is cast
  Term::Numbers strides{};             ///< 0 along loops that do not change the term
  int64_t offset = 0;
  bool operator==(const Store& other) const = default;
};

/// The computation of an operator or of a whole group. It consists of loops, the terms that each iteration computes,
/// and the stored results. Without loops, there is one iteration. Code generation needs no other information about
/// operators.
///
/// - A load has the type of its memory.
/// - bf16 and half are cast to float after the load and computed in float, as in ATen's kernels. Intermediates within a
///   group are not rounded.
/// - Integers are computed in their own type.
/// - Operands must not overlap other buffers.
/// - An operand that an update writes is loaded only at the addresses that the update writes. Code is therefore correct
///   if it stores after all loads, including the loads for reductions.
struct Expression {
  Term::Numbers loops{};  ///< sizes of the loops, outermost first, in the logical order of the dims
  std::vector<Term> terms{};
  std::vector<Store> stores{};

  bool has_reductions() const;
  /// Returns a mask for each term: bit i is set if the term varies along loop i.
  std::vector<uint64_t> varies() const;
  /// Returns one line per term. Expressions with equal texts have equal code.
  std::string to_text() const;
  bool operator==(const Expression& other) const = default;
};

/// Returns the expression of an instruction's operator. The index of a load is a position among the operands of all
/// arguments, including undefined operands. The index of a number is a position among the arguments, and the index of a
/// store is a position among the results.
/// Returns: nothing unless the operator is a supported pointwise operator, reduction, softmax or normalization on dense
///          CPU tensors
std::optional<Expression> expression_of(const Instruction& instruction);

/// Returns the expression of a whole group as one loop nest. Values that the group both computes and reads are not
/// loaded. The index of a load is a position among the group's inputs, and the index of a number is a position among
/// its numbers. The index of a store is a position among the outputs that are not updates. For an update, it is the
/// position of the updated input.
/// Returns: nothing if the group's instructions do not fit into one loop nest
std::optional<Expression> expression_of(const Program& group);

/// Returns the expressions of a group that consists of independent groups ("multi_tensor"), with the indices of the
/// whole group. For any other group, the result contains its single expression. The result is empty if there is no
/// expression for one of the groups.
std::vector<Expression> expressions_of(const Program& group);

/// Returns whether expressions and generated code support memory of this type.
bool is_known_type(c10::ScalarType type);

/// Returns the type in which ATen's CPU kernels compute values of this type.
c10::ScalarType compute_type(c10::ScalarType type);

}  // namespace bellows::graph
