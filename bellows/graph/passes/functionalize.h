#pragma once

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Replaces in-place operators with pure operators, which do not write to their arguments. `add_` becomes an `add`
/// whose result is the update. `_foreach_add_` becomes one `add` per tensor. Later passes therefore do not have to
/// handle every variant of a pointwise operator. Operators whose pure form is not bit-identical, such as `mul_` of
/// 16-bit floats by a number, are not replaced.
/// Numerics: exact (tests/graph/functionalize_test.cpp)
void functionalize(Program& program);

/// Returns the in-place form of a pure operator with an update, or null if there is none. For example, the in-place
/// form of an `add` whose result updates its first operand is `add_`.
const OperatorFacts* in_place_of(const Instruction& instruction);

/// Returns the out variant of an operator, whose last argument is the memory of the result. For example, the out
/// variant of `mm` is `mm.out`. Returns null if there is no such variant, or if the result is not one new contiguous
/// tensor. Only matrix multiplications are supported, because their results use most of a step's memory.
const OperatorFacts* out_form_of(const Instruction& instruction);

}  // namespace bellows::graph
