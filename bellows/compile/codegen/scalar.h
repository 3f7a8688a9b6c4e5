#pragma once

#include <string>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// value_type() returns the C++ type of a term of the given type. memory_type() returns the C++ type of its elements in
/// memory.
const char* value_type(c10::ScalarType type);
const char* memory_type(c10::ScalarType type);

/// Returns code that converts `text`, which is a term or an element in memory, to a different type.
std::string converted(const std::string& text, c10::ScalarType from, c10::ScalarType to);
/// Returns a value as a C++ literal.
std::string literal(double value, c10::ScalarType type);
/// Returns the value of a floating-point literal that literal() returned.
double value_of_literal(const std::string& literal);
/// Returns code that computes a term from `a`, `b` and `c`. The term must not be a leaf or a reduction.
/// Params: from – the type of `a`
std::string applied(const graph::Term& term, c10::ScalarType from, const std::string& a, const std::string& b,
                    const std::string& c);
/// Returns code for a power with a known exponent. If ATen uses a multiplication or a root for this exponent, so does
/// the code.
/// Params: otherwise – code for all other exponents
std::string power(const std::string& base, double exponent, const std::string& otherwise);
/// Returns whether computing this function twice costs more than storing its result.
bool is_expensive(graph::Function function);

/// The code of a reduction. The generated loop computes partial results in vector code and then combines them into the
/// total.
struct ReductionCode {
  std::string part_type, total_type;  ///< float sums and products have a total in double
  std::string start;                  ///< initial value of partial results and total
  std::string clause;                 ///< reduction operator for `omp simd`
  std::string joined(const std::string& total, const std::string& part) const;
  bool watches_nan = false;  ///< NaN must be detected separately, because comparisons ignore NaN
  graph::Function function = graph::Function::sum;
};
ReductionCode reduction_code(const graph::Term& term);

}  // namespace bellows::compile_detail
