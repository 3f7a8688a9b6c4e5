#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// What is generated for a group: functions in C++, to be called one after the other.
struct KernelCode {
  /// `void SYMBOL(char* const* operands, char* const* results, const double* numbers, char* scratch, i64 begin, i64 end)` computes
  /// units `begin` to `end`, which may be computed in any order and at the same time.
  struct Function {
    std::string symbol;  ///< made of the text: equal code has one name
    std::string text;
    int64_t units = 0;
    int64_t unit_bytes = 0;  ///< a unit takes about as long as moving so many
  };
  std::vector<Function> functions{};
  size_t scratch_bytes = 0;  ///< that functions hand each other values in
};

/// Generates code: shapes and strides are part of it, numbers are read when it runs.
///
/// Rows or columns are chosen by what lies side by side in memory; loops that run on into each other are one; the last is written so that
/// the compiler makes vector code of it. bf16 and half are computed in float. Sums of floats are taken in parts, which are summed in double.
/// Returns: nothing for what can not be written: a type that C++ lacks, an operand that is written before all its reads
/// Numerics: exp, expm1, log, log1p, tanh and erf of floats within 5 units of the last place of libtorch's (tests/compile)
std::optional<KernelCode> generate(const graph::Expression& expression);

/// Several at once that share operands, results and numbers, and do not depend on each other. Those with the same code are one function,
/// which is shared out over threads as a whole.
std::optional<KernelCode> generate(const std::vector<graph::Expression>& expressions);

/// A source of all these functions; each stands in it once.
std::string source_of(const std::vector<const KernelCode*>& kernels);

}  // namespace bellows::compile_detail
