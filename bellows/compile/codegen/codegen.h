#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// The code generated for a group: C++ functions that are called one after another.
struct KernelCode {
  /// A function with this signature:
  /// void SYMBOL(char* const* operands, char* const* results, const double* numbers, char* scratch, i64 begin, i64 end)
  /// It computes the units from `begin` to `end`. Units may be computed in any order and at the same time.
  struct Function {
    std::string symbol;  ///< derived from the text, so that equal code has the same name
    std::string text;
    int64_t units = 0;
    int64_t unit_bytes = 0;  ///< cost of a unit: the bytes that could be moved in the same time
  };
  std::vector<Function> functions{};
  size_t scratch_bytes = 0;  ///< for values that one function passes to another
};

/// Generates code. Shapes and strides are part of it; numbers are read when it runs.
///
/// It chooses rows or columns by which elements are adjacent in memory. Adjacent loops are merged into one. The
/// innermost loop is written so that the compiler vectorizes it. bf16 and half are computed in float. Sums of floats
/// are computed in parts, which are added in double.
/// Returns:  nothing if the expression is not supported: a type that C++ lacks, or an operand that is written before
///           all of its reads
/// Numerics: exp, expm1, log, log1p, tanh and erf of floats are within 5 units in the last place of libtorch's
///           (tests/compile)
std::optional<KernelCode> generate(const graph::Expression& expression);

/// Generates code for several independent expressions that share operands, results and numbers. Expressions with the
/// same code form one function, whose work is divided among threads as a whole.
std::optional<KernelCode> generate(const std::vector<graph::Expression>& expressions);

/// Returns: one source with all these functions, each once
std::string source_of(const std::vector<const KernelCode*>& kernels);

}  // namespace bellows::compile_detail
