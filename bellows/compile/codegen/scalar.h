#pragma once

#include <string>

#include "bellows/graph/passes/expression.h"

namespace bellows::compile_detail {

/// The C++ type of a term of this type; of memory that holds it.
const char* value_type(c10::ScalarType type);
const char* memory_type(c10::ScalarType type);

/// `text`, of a term or from memory, as another type.
std::string converted(const std::string& text, c10::ScalarType from, c10::ScalarType to);
/// A value of a type, as C++.
std::string literal(double value, c10::ScalarType type);
/// What a term that is no leaf and no reduction computes from `a`, `b` and `c`; `from` is the type of `a`.
std::string applied(const graph::Term& term, c10::ScalarType from, const std::string& a, const std::string& b,
                    const std::string& c);
/// A power with an exponent that is known: a product or a root where ATen takes one, else `otherwise`.
std::string power(const std::string& base, double exponent, const std::string& otherwise);
/// Worth keeping rather than computing twice.
bool is_expensive(graph::Function function);

/// How a reduction is written: of parts that run in vector code, and of their total.
struct ReductionCode {
  std::string part_type, total_type;  ///< a float's sum is kept in a double
  std::string start;                  ///< of both
  std::string clause;                 ///< of omp simd
  std::string joined(const std::string& total, const std::string& part) const;
  bool watches_nan = false;  ///< comparisons lose NaN: it is looked for beside them
  graph::Function function = graph::Function::sum;
};
ReductionCode reduction_code(const graph::Term& term);

}  // namespace bellows::compile_detail
