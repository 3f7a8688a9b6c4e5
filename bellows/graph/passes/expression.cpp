#include "bellows/graph/passes/expression.h"

#include <sstream>

namespace bellows::graph {
namespace {

struct FunctionFacts {
  const char* name;
  int arity;
};

constexpr FunctionFacts function_facts[] = {
    {"load", 0},        {"number", 0},     {"constant", 0},    {"cast", 1},        {"neg", 1},
    {"abs", 1},         {"sign", 1},       {"exp", 1},         {"exp2", 1},        {"expm1", 1},
    {"log", 1},         {"log2", 1},       {"log10", 1},       {"log1p", 1},       {"sqrt", 1},
    {"rsqrt", 1},       {"reciprocal", 1}, {"sin", 1},         {"cos", 1},         {"tan", 1},
    {"asin", 1},        {"acos", 1},       {"atan", 1},        {"sinh", 1},        {"cosh", 1},
    {"tanh", 1},        {"erf", 1},        {"erfc", 1},        {"floor", 1},       {"ceil", 1},
    {"round", 1},       {"trunc", 1},      {"isnan", 1},       {"logical_not", 1}, {"bitwise_not", 1},
    {"add", 2},         {"sub", 2},        {"mul", 2},         {"div", 2},         {"fmod", 2},
    {"pow", 2},         {"atan2", 2},      {"maximum", 2},     {"minimum", 2},     {"eq", 2},
    {"ne", 2},          {"lt", 2},         {"le", 2},          {"gt", 2},          {"ge", 2},
    {"logical_and", 2}, {"logical_or", 2}, {"logical_xor", 2}, {"bitwise_and", 2}, {"bitwise_or", 2},
    {"bitwise_xor", 2}, {"where", 3},      {"sum", 1},         {"product", 1},     {"max", 1},
    {"min", 1},         {"any", 1},        {"all", 1},
};
static_assert(std::size(function_facts) == static_cast<size_t>(Function::all) + 1);

void print_place(std::ostream& out, const Term::Numbers& strides, int64_t offset) {
  out << "[" << c10::Join(" ", strides) << "]";
  if (offset) out << " offset " << offset;
}

void print_term(std::ostream& out, const Term& term) {
  out << name_of(term.function) << " " << c10::toString(term.type);
  if (term.function == Function::constant) {
    out << " " << std::hexfloat << term.value << std::defaultfloat;
  } else if (term.function == Function::load || term.function == Function::number) {
    out << " " << term.index << " ";
    if (term.function == Function::load) print_place(out, term.strides, term.offset);
  } else {
    for (int i = 0; i < arity(term.function); ++i) out << " %" << term.terms[i];
  }
  if (term.reduced) out << " over " << term.reduced;
}

}  // namespace

int arity(Function function) {
  return function_facts[static_cast<size_t>(function)].arity;
}

bool is_reduction(Function function) {
  return function >= Function::sum;
}

const char* name_of(Function function) {
  return function_facts[static_cast<size_t>(function)].name;
}

bool is_known_type(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
    case c10::kDouble:
    case c10::kBFloat16:
    case c10::kHalf:
    case c10::kLong:
    case c10::kInt:
    case c10::kShort:
    case c10::kChar:
    case c10::kByte:
    case c10::kBool:
      return true;
    default:
      return false;
  }
}

c10::ScalarType compute_type(c10::ScalarType type) {
  return c10::isReducedFloatingType(type) ? c10::kFloat : type;
}

bool Expression::has_reductions() const {
  for (const Term& term : terms) {
    if (is_reduction(term.function)) return true;
  }
  return false;
}

std::vector<uint64_t> Expression::varies() const {
  std::vector<uint64_t> result(terms.size(), 0);
  for (size_t i = 0; i < terms.size(); ++i) {
    const Term& term = terms[i];
    for (size_t loop = 0; loop < term.strides.size(); ++loop)
      result[i] |= static_cast<uint64_t>(term.strides[loop] != 0) << loop;
    for (int k = 0; k < arity(term.function); ++k) result[i] |= result[term.terms[k]];
    result[i] &= ~term.reduced;
  }
  return result;
}

std::string Expression::to_text() const {
  std::ostringstream out;
  out << "loops [" << c10::Join(" ", loops) << "]\n";
  for (size_t i = 0; i < terms.size(); ++i) {
    out << "  %" << i << " = ";
    print_term(out, terms[i]);
    out << "\n";
  }
  for (const Store& store : stores) {
    out << "  " << (store.update ? "update " : "result ") << store.index << " " << c10::toString(store.type) << " ";
    print_place(out, store.strides, store.offset);
    out << " = %" << store.term << "\n";
  }
  return out.str();
}

}  // namespace bellows::graph
