#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/compile/codegen/marked_text.h"
#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// The generated code of a group: C++ functions that must be called one after another.
struct KernelCode {
  /// A function with this signature:
  /// void SYMBOL(char* const* operands, char* const* results, const double* numbers, char* scratch, const i64* sizes,
  ///             const double* constants, i64 begin, i64 end)
  /// It computes the units of work from `begin` to `end`. Units are independent and may be computed concurrently.
  struct Function {
    std::string symbol;  ///< derived from the text, so that equal code has the same name
    std::string text;
    int64_t units = 0;
    /// Estimated cost of a unit, expressed as the bytes that memory could transfer in that time.
    int64_t unit_bytes = 0;
    MarkedText marked{};
    /// Numbers that the function reads from its arguments, because other programs use it with other numbers.
    std::vector<int64_t> sizes{};
    std::vector<double> constants{};

    /// Changes the text so that it reads these numbers from its arguments (MarkedText::code()).
    void read_numbers(const std::vector<bool>& size_varies, const std::vector<bool>& constant_varies);
  };
  std::vector<Function> functions{};
  /// Bytes to add to the pointers of operands and results before the functions are called, by index; 0 for all further
  /// ones. Kernels that read or write the same places of different parts of buffers then share their functions.
  std::vector<int64_t> operand_offsets{}, result_offsets{};
  size_t scratch_bytes = 0;  ///< scratch memory for values that one function passes to another
};

/// Generates code for an expression. Shapes and strides are constants in the code, unless a FunctionFamily changes this.
/// Numbers are read when the code runs.
///
/// The code iterates over rows or columns, depending on which elements are adjacent in memory. Adjacent loops are
/// merged. The innermost loop is written so that the compiler vectorizes it. bf16 and half are computed in float. Sums
/// of floats are computed in parts, and the parts are added in double.
/// Returns:  nothing if the expression is not supported. This is the case if it has 16 or more loops, a loop without
///           iterations, or a type that generated code does not support. It is also the case if an operand would be
///           written before its last read, or an element would be updated more than once
/// Numerics: exp, expm1, log, log1p, tanh and erf of floats differ from libtorch's by at most 5 units in the last place
///           (tests/compile)
std::optional<KernelCode> generate(const graph::Expression& expression);

/// Generates code for several independent expressions that share operands, results and numbers. Loop nests with the
/// same code become one function if they have at most one loop, no reductions and no scratch memory. The threads share
/// the combined work of these loop nests.
std::optional<KernelCode> generate(const std::vector<graph::Expression>& expressions);

/// Returns source text that contains these functions.
std::string source_of(const std::vector<const KernelCode::Function*>& functions);

}  // namespace bellows::compile_detail
