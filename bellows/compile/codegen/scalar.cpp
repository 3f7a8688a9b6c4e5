#include "bellows/compile/codegen/scalar.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <cstdio>
#include <map>

namespace bellows::compile_detail {
namespace {

using c10::ScalarType;
using graph::Function;
using graph::Term;

bool is_small_float(ScalarType type) {
  return type == c10::kBFloat16 || type == c10::kHalf;
}

/// An operator between two terms.
const char* operator_between(Function function) {
  static const std::map<Function, const char*> known = {
      {Function::add, "+"},        {Function::sub, "-"}, {Function::mul, "*"},         {Function::div, "/"},
      {Function::eq, "=="},        {Function::ne, "!="}, {Function::lt, "<"},          {Function::le, "<="},
      {Function::gt, ">"},         {Function::ge, ">="}, {Function::bitwise_and, "&"}, {Function::bitwise_or, "|"},
      {Function::bitwise_xor, "^"}};
  const auto found = known.find(function);
  return found == known.end() ? nullptr : found->second;
}

std::string type_limit(ScalarType type, bool lowest) {
  if (c10::isFloatingType(type)) return lowest ? "-__builtin_inf()" : "__builtin_inf()";
  if (type == c10::kBool) return lowest ? "0" : "1";
  if (type == c10::kByte) return lowest ? "0" : "255";
  const int bits = static_cast<int>(8 * c10::elementSize(type));
  return lowest ? c10::str("(i64)(-1ull << ", bits - 1, ")") : c10::str("(i64)((1ull << ", bits - 1, ") - 1)");
}

}  // namespace

const char* value_type(ScalarType type) {
  return type == c10::kBool ? "bool" : memory_type(type);
}

const char* memory_type(ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return "float";
    case c10::kDouble:
      return "double";
    case c10::kBFloat16:
    case c10::kHalf:
      return "u16";
    case c10::kLong:
      return "i64";
    case c10::kInt:
      return "i32";
    case c10::kShort:
      return "i16";
    case c10::kChar:
      return "i8";
    case c10::kByte:
    case c10::kBool:
      return "u8";
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "compile: no code is generated for ", type, ".");
  }
}

std::string converted(const std::string& text, ScalarType from, ScalarType to) {
  if (from == to) return text;
  if (from == c10::kBFloat16) return converted("from_bf16(" + text + ")", c10::kFloat, to);
  if (from == c10::kHalf) return converted("from_f16(" + text + ")", c10::kFloat, to);
  if (is_small_float(to)) return (to == c10::kHalf ? "to_f16(" : "to_bf16(") + converted(text, from, c10::kFloat) + ")";
  if (to == c10::kBool) return "(" + text + " != 0)";
  // As in ATen: a negative number wraps around, as if converted through a large enough integer.
  if (c10::isFloatingType(from) && c10::isIntegralType(to, false) && to != c10::kLong && to != c10::kInt)
    return c10::str("(", memory_type(to), ")(i32)(", text, ")");
  return c10::str("(", memory_type(to), ")(", text, ")");
}

std::string literal(double value, ScalarType type) {
  if (type == c10::kBool) return value != 0 ? "true" : "false";
  if (c10::isIntegralType(type, false)) return c10::str("(", value_type(type), ")", static_cast<int64_t>(value), "ll");
  const char* const suffix = type == c10::kDouble ? "" : "f";
  if (std::isnan(value)) return c10::str("__builtin_nan", suffix, "(\"\")");
  if (std::isinf(value)) return c10::str(value < 0 ? "(-" : "(", "__builtin_inf", suffix, "())");
  char digits[48];
  std::snprintf(digits, sizeof digits, "(%a%s)",
                type == c10::kDouble ? value : static_cast<double>(static_cast<float>(value)), suffix);
  return digits;
}

double value_of_literal(const std::string& literal) {
  return std::strtod(literal.c_str() + 1, nullptr);  // "(0x1.8p+1f)"
}

std::string applied(const Term& term, ScalarType from, const std::string& a, const std::string& b,
                    const std::string& c) {
  const std::string cast = c10::str("(", value_type(term.type), ")");
  if (const char* between = operator_between(term.function)) return cast + c10::str("(", a, " ", between, " ", b, ")");
  switch (term.function) {
    case Function::cast:
      return converted(a, from, term.type);
    case Function::neg:
      return cast + "(-" + a + ")";
    case Function::reciprocal:
      return cast + "(1 / " + a + ")";
    case Function::rsqrt:
      return cast + "(1 / k_sqrt(" + a + "))";
    case Function::isnan:
      return "(" + a + " != " + a + ")";
    case Function::logical_not:
      return "(" + a + " == 0)";
    case Function::bitwise_not:
      return term.type == c10::kBool ? "!" + a : cast + "(~" + a + ")";
    case Function::logical_and:
      return c10::str("((", a, " != 0) & (", b, " != 0))");
    case Function::logical_or:
      return c10::str("((", a, " != 0) | (", b, " != 0))");
    case Function::logical_xor:
      return c10::str("((", a, " != 0) != (", b, " != 0))");
    case Function::where:
      return c10::str("(", a, " ? ", b, " : ", c, ")");
    default:
      return c10::str("k_", graph::name_of(term.function), "(", a, graph::arity(term.function) > 1 ? ", " + b : "",
                      ")");
  }
}

std::string power(const std::string& base, double exponent, const std::string& otherwise) {
  if (exponent == 2) return c10::str(base, " * ", base);
  if (exponent == 3) return c10::str(base, " * ", base, " * ", base);
  if (exponent == 0.5) return c10::str("k_sqrt(", base, ")");
  if (exponent == -0.5) return c10::str("1 / k_sqrt(", base, ")");
  if (exponent == -1) return c10::str("1 / ", base);
  if (exponent == -2) return c10::str("1 / (", base, " * ", base, ")");
  return otherwise;
}

bool is_expensive(Function function) {
  switch (function) {
    case Function::exp:
    case Function::exp2:
    case Function::expm1:
    case Function::log:
    case Function::log2:
    case Function::log10:
    case Function::log1p:
    case Function::sin:
    case Function::cos:
    case Function::tan:
    case Function::asin:
    case Function::acos:
    case Function::atan:
    case Function::sinh:
    case Function::cosh:
    case Function::tanh:
    case Function::erf:
    case Function::erfc:
    case Function::fmod:
    case Function::pow:
    case Function::atan2:
      return true;
    default:
      return false;
  }
}

ReductionCode reduction_code(const Term& term) {
  ReductionCode code{
      .part_type = value_type(term.type), .total_type = value_type(term.type), .function = term.function};
  switch (term.function) {
    case Function::sum:
    case Function::product:
      code.start = term.function == Function::sum ? "0" : "1";
      code.clause = term.function == Function::sum ? "+" : "*";
      if (term.type == c10::kFloat) code.total_type = "double";
      return code;
    case Function::max:
    case Function::min:
      code.start = type_limit(term.type, term.function == Function::max);
      code.clause = term.function == Function::max ? "max" : "min";
      code.watches_nan = c10::isFloatingType(term.type);
      return code;
    default:  // any, all
      code.part_type = code.total_type = "i32";
      code.start = term.function == Function::any ? "0" : "1";
      code.clause = term.function == Function::any ? "|" : "&";
      return code;
  }
}

std::string ReductionCode::joined(const std::string& total, const std::string& part) const {
  switch (function) {
    case Function::sum:
      return total + " += " + part;
    case Function::product:
      return total + " *= " + part;
    case Function::max:
      return c10::str(total, " = ", part, " > ", total, " ? ", part, " : ", total);
    case Function::min:
      return c10::str(total, " = ", part, " < ", total, " ? ", part, " : ", total);
    case Function::any:
      return c10::str(total, " |= (", part, " != 0)");
    default:
      return c10::str(total, " &= (", part, " != 0)");
  }
}

}  // namespace bellows::compile_detail
