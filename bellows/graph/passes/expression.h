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

/// The operations of generated code at one place. They have the names and meaning of <cmath> where it has them.
/// `maximum`, `minimum` and the corresponding reductions propagate NaN, `round` rounds halves to even, and comparisons
/// return bool.
enum class Function : uint8_t {
  // leaves
  load,      ///< the content of operand `index` at this place
  number,    ///< the number `index`, which the caller passes
  constant,  ///< `value`
  // of one term
  cast,  ///< to `type`: as static_cast; to bool: whether it is not 0; to bf16 and half: rounded
  // clang-format off
  neg, abs, sign, exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh,
  cosh, tanh, erf, erfc, floor, ceil, round, trunc, isnan, logical_not, bitwise_not,
  // two terms
  add, sub, mul, div, fmod, pow, atan2, maximum, minimum, eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor,
  bitwise_and, bitwise_or, bitwise_xor,
  // three terms
  where,  ///< first ? second : third
  // one term, reduced over the loops in `reduced`; afterwards the same at all places along these loops
  sum, product, max, min, any, all,
  // clang-format on
};

/// Returns: the number of terms that it takes
int arity(Function function);
bool is_reduction(Function function);
const char* name_of(Function function);

/// One step of an expression. It may use earlier terms.
struct Term {
  using Numbers = c10::SmallVector<int64_t, 6>;

  Function function = Function::constant;
  /// Type of the computation and of the result; bf16 and half occur for load and cast only
  c10::ScalarType type = c10::kFloat;
  std::array<int, 3> terms{-1, -1, -1};
  double value = 0;
  int index =
      -1;  ///< of load: which operand, counted over all arguments; of number: which argument, or number of the group
  Numbers strides{};     ///< of load: in elements, one per loop; 0 along loops on which it does not depend
  int64_t offset = 0;    ///< of load: in elements of `type`, from the first byte of the buffer
  uint64_t reduced = 0;  ///< of reductions: bit i is set for loop i
  bool operator==(const Term& other) const = default;
};

/// A result and the place where it is stored.
struct Store {
  int term = -1;
  int index = -1;                      ///< index of the result, counted over all; of updates: index of the operand
  bool update = false;                 ///< writes into an operand's buffer
  c10::ScalarType type = c10::kFloat;  ///< type in memory, to which the term is cast
  Term::Numbers strides{};             ///< 0 along loops on which the term does not depend
  int64_t offset = 0;
  bool operator==(const Store& other) const = default;
};

/// The computation of an operator or a whole group: loops (none: one place), the terms at each place, and the stored
/// results. Code generation needs no other facts about operators.
///
/// A load has the type of its memory. bf16 and half are cast to float after the load and computed in float, as in
/// ATen's kernels. Intermediates within a group are not rounded. Integers are computed in their own type. Operands must
/// not overlap other buffers. An operand that an update writes is loaded only at the places that the store writes. Code
/// is therefore correct if it stores after all loads, including those that reductions depend on.
struct Expression {
  Term::Numbers loops{};  ///< sizes, outermost first, in logical order like the dims of tensors
  std::vector<Term> terms{};
  std::vector<Store> stores{};

  bool has_reductions() const;
  /// Returns: for each term, a mask of the loops along which it varies (bit i: loop i)
  std::vector<uint64_t> varies() const;
  /// One line per term. Equal texts mean equal code.
  std::string to_text() const;
  bool operator==(const Expression& other) const = default;
};

/// The expression of an instruction's operator. There is none unless it is a supported pointwise operator, reduction,
/// softmax or normalization on dense CPU tensors. Indices count the instruction's operands (of all arguments, including
/// undefined ones), its arguments (for numbers) and its results.
std::optional<Expression> expression_of(const Instruction& instruction);

/// The expression of a whole group as one nest of loops. There is none if its instructions do not fit into one. Values
/// that are made and read within the group are not loads. Indices count the group's inputs, its numbers, and the
/// outputs that are not updates. A store that is an update has the index of the input.
std::optional<Expression> expression_of(const Program& group);

/// The expressions of a group of independent groups ("multi_tensor"), with indices of the whole group. For any other
/// group: its single expression. Empty if an expression is missing.
std::vector<Expression> expressions_of(const Program& group);

/// True if expressions and generated code support this type of memory.
bool is_known_type(c10::ScalarType type);

/// Returns: the type in which ATen's CPU kernels compute this one
c10::ScalarType compute_type(c10::ScalarType type);

}  // namespace bellows::graph
