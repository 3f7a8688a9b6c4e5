#pragma once

#include <string>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// The C++ type of a term of this type, and of memory that holds it.
const char* value_type(c10::ScalarType type);
const char* memory_type(c10::ScalarType type);

/// Converts `text`, a term or memory, to another type.
std::string converted(const std::string& text, c10::ScalarType from, c10::ScalarType to);
/// A value of a type as C++ literal.
std::string literal(double value, c10::ScalarType type);
/// The computation of a term from `a`, `b` and `c`; not for leaves and reductions. `from` is the type of `a`.
std::string applied(const graph::Term& term, c10::ScalarType from, const std::string& a, const std::string& b,
                    const std::string& c);
/// A power with a known exponent: a multiplication or a root where ATen uses one, otherwise `otherwise`.
std::string power(const std::string& base, double exponent, const std::string& otherwise);
/// True if storing the result is cheaper than computing it twice.
bool is_expensive(graph::Function function);

/// The code of a reduction: of the parts, which run in vector code, and of their total.
struct ReductionCode {
  std::string part_type, total_type;  ///< sums of floats are accumulated in double
  std::string start;                  ///< initial value of both
  std::string clause;                 ///< of `omp simd`
  std::string joined(const std::string& total, const std::string& part) const;
  bool watches_nan = false;  ///< comparisons lose NaN, so it is detected separately
  graph::Function function = graph::Function::sum;
};
ReductionCode reduction_code(const graph::Term& term);

}  // namespace bellows::compile_detail
