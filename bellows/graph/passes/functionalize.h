#pragma once

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Replaces operators that write by pure operators where the results are bit-identical. `add_` becomes `add` whose
/// result is the update, and `_foreach_add_` becomes one `add` per tensor. Afterwards, the program's pointwise
/// operators are pure, and passes need not handle each spelling. Other operators are unchanged. Example: `mul_` of
/// 16-bit floats by a number, which rounds differently than `mul`.
/// Numerics: exact (tests/graph/functionalize_test.cpp)
void functionalize(Program& program);

/// Returns: the in-place form of a pure operator with an update, such as `add_` for an `add` whose result updates its
///          first operand; null if there is none
const OperatorFacts* in_place_of(const Instruction& instruction);

/// Returns: the out form of an operator, which gets its result's memory as the last argument, such as `mm.out` for
///          `mm`. Null if there is none, or if the result is not one new contiguous tensor. Supports matrix
///          multiplications only, because their results take most of a step's memory.
const OperatorFacts* out_form_of(const Instruction& instruction);

}  // namespace bellows::graph
