#pragma once

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Puts pure operators in the place of those that write, where both give the same bits: `add_` becomes `add` whose result is the
/// update, `_foreach_add_` becomes one `add` for each tensor. A program's pointwise operators are pure afterwards, and passes need
/// not know how each of them is spelled. Others stay as they are, `mul_` of 16-bit floats by a number among them: it has other bits
/// than `mul`.
/// Numerics: exact (tests/graph/functionalize_test.cpp)
void functionalize(Program& program);

/// The operator that does in place what a pure one with an update says: `add_` for an `add` whose result updates its first operand.
/// Null where there is none.
const OperatorFacts* in_place_of(const Instruction& instruction);

/// The operator that does the same into a tensor that it is given last: `mm.out` for `mm`. Products only: their results are what most of a
/// step's memory is made of. Null where there is none, or the result is not one new contiguous tensor.
const OperatorFacts* out_form_of(const Instruction& instruction);

}  // namespace bellows::graph
