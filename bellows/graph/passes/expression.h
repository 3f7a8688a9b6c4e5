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

/// What generated code computes at one place. Names are those of <cmath> where it has them; `maximum`, `minimum` and their
/// reductions hand NaN on, `round` goes to the even one, comparisons give a bool.
enum class Function : uint8_t {
  // leaves
  load,      ///< what the operand `index` holds at this place
  number,    ///< the number `index`, which the caller gives
  constant,  ///< `value`
  // of one term
  cast,  ///< to `type`: as static_cast; to bool: unequal 0; to bf16 and half: rounded
  // clang-format off
  neg, abs, sign, exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh,
  cosh, tanh, erf, erfc, floor, ceil, round, trunc, isnan, logical_not, bitwise_not,
  // of two
  add, sub, mul, div, fmod, pow, atan2, maximum, minimum, eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor,
  bitwise_and, bitwise_or, bitwise_xor,
  // of three
  where,  ///< first ? second : third
  // of one term, over the loops that `reduced` names; the same at all places along these afterwards
  sum, product, max, min, any, all,
  // clang-format on
};

/// How many terms it takes.
int arity(Function function);
bool is_reduction(Function function);
const char* name_of(Function function);

/// One step of an expression. It may use the terms before it.
struct Term {
  using Numbers = c10::SmallVector<int64_t, 6>;

  Function function = Function::constant;
  c10::ScalarType type = c10::kFloat;  ///< that it is computed in, and has: never bf16 or half but for load and cast
  std::array<int, 3> terms{-1, -1, -1};
  double value = 0;
  int index =
      -1;  ///< of load: which operand, counted over all arguments; of number: which argument, or number of the group
  Numbers strides{};     ///< of load: in elements, one a loop; 0 along loops that it is the same for
  int64_t offset = 0;    ///< of load: in elements of `type`, from the first byte of the buffer
  uint64_t reduced = 0;  ///< of reductions: bit i: loop i
  bool operator==(const Term& other) const = default;
};

/// A result, and where it goes.
struct Store {
  int term = -1;
  int index = -1;                      ///< which result, counted over all; of updates: which operand
  bool update = false;                 ///< into an operand's buffer
  c10::ScalarType type = c10::kFloat;  ///< in memory: the term is cast to it
  Term::Numbers strides{};             ///< 0 along loops that the term does not vary along
  int64_t offset = 0;
  bool operator==(const Store& other) const = default;
};

/// What an operator, or a whole group, computes: loops (none: one place), what is computed at each place, and what is kept. This is
/// all that code generation has to know of operators.
///
/// A load gives the type of the memory; bf16 and half are cast to float behind it, and computed in float as ATen's kernels do; what stays
/// inside of a group is not rounded in between. Integers are computed in their own type. Operands may overlap no other buffer,
/// and an operand that an update writes is loaded at the places only that the store writes: whoever stores after all loads,
/// those that reductions depend on included, is right.
struct Expression {
  Term::Numbers loops{};  ///< sizes, outermost first; logical order, as the tensors' dims
  std::vector<Term> terms{};
  std::vector<Store> stores{};

  bool has_reductions() const;
  /// Of each term: bit i: it varies along loop i.
  std::vector<uint64_t> varies() const;
  /// One line a term. Equal texts are equal code.
  std::string to_text() const;
  bool operator==(const Expression& other) const = default;
};

/// What the operator of an instruction computes; none, if it is no pointwise operator, reduction, softmax or normalization that is known
/// here, of dense CPU tensors. Indices count the instruction's operands (all arguments, undefined ones too), its arguments
/// (number) and its results.
std::optional<Expression> expression_of(const Instruction& instruction);

/// What a whole group computes in one nest of loops; none, if its instructions do not fit one. What one instruction makes and others of
/// the group read is no load. Indices count the group's inputs, its numbers, and the outputs that are no updates; a store that
/// is an update has the index of the input.
std::optional<Expression> expression_of(const Program& group);

/// Of a group of groups, which depend on nothing of each other ("multi_tensor"), what each computes; indices count as those of the
/// whole. Of another one: its one expression. Empty, if one is missing.
std::vector<Expression> expressions_of(const Program& group);

/// Whether expressions, and code for them, know this type of memory.
bool is_known_type(c10::ScalarType type);

/// The type that ATen's CPU kernels compute this one in.
c10::ScalarType compute_type(c10::ScalarType type);

}  // namespace bellows::graph
