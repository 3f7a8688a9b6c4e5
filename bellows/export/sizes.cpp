#include "bellows/export/sizes.h"

#include <algorithm>
#include <utility>

namespace bellows::export_detail {

namespace {

int64_t floor_divided(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

bool holds(const SizeExpression& expression, const Varied& number, const std::vector<Symbol>& symbols) {
  for (size_t i = 0; i < number.values.size(); ++i) {
    std::vector<int64_t> sizes;
    sizes.reserve(symbols.size());
    for (const Symbol& symbol : symbols) sizes.push_back(symbol.sizes.values[i]);
    if (expression.value(sizes) != number.values[i]) return false;
  }
  return true;
}

/// The symbols whose size changes the number.
std::vector<size_t> causes(const Varied& number, const std::vector<Symbol>& symbols) {
  std::vector<size_t> found;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (number.values[1 + i] != number.values[0]) found.push_back(i);
  }
  return found;
}

std::optional<SizeExpression> sum_of(const Varied& number, const std::vector<Symbol>& symbols,
                                     const std::vector<size_t>& used) {
  SizeExpression sum{.constant = number.first()};
  for (const size_t i : used) {
    const auto& sizes = symbols[i].sizes.values;
    const int64_t step = sizes[1 + i] - sizes[0], change = number.values[1 + i] - number.values[0];
    if (step == 0 || change % step != 0) return {};
    sum.terms.push_back({.symbol = i, .factor = change / step});
    sum.constant -= change / step * sizes[0];
  }
  return sum;
}

std::optional<SizeExpression> product_of(const Varied& number, const std::vector<Symbol>& symbols,
                                         const std::vector<size_t>& used) {
  SizeExpression product{.form = SizeExpression::Form::product, .constant = number.first()};
  for (const size_t i : used) {
    const int64_t size = symbols[i].sizes.first();
    if (size == 0 || product.constant % size != 0) return {};
    product.constant /= size;
    product.terms.push_back({.symbol = i});
  }
  return product;
}

/// The sizes of strided convolutions and pools.
std::optional<SizeExpression> quotient_of(const Varied& number, const std::vector<Symbol>& symbols, size_t used) {
  constexpr int64_t most_divisor = 64;
  for (int64_t divisor = 2; divisor <= most_divisor; ++divisor) {
    for (int64_t shift = 0; shift < 2 * divisor; ++shift) {
      for (const int64_t signed_shift : {shift, -shift}) {
        const SizeExpression quotient{.form = SizeExpression::Form::quotient,
                                      .constant = signed_shift,
                                      .divisor = divisor,
                                      .terms = {{.symbol = used}}};
        if (holds(quotient, number, symbols)) return quotient;
      }
    }
  }
  return {};
}

}  // namespace

bool Varied::constant() const {
  return std::all_of(values.begin(), values.end(), [&](int64_t value) { return value == values.front(); });
}

bool Varied::is(int64_t value) const {
  return std::all_of(values.begin(), values.end(), [&](int64_t one) { return one == value; });
}

Varied fixed(int64_t value, size_t recordings) {
  return {std::vector<int64_t>(recordings, value)};
}

Varied minus(const Varied& number, const Varied& other) {
  Varied difference = number;
  for (size_t i = 0; i < difference.values.size(); ++i) difference.values[i] -= other.values[i];
  return difference;
}

std::optional<size_t> SizeExpression::symbol() const {
  const bool single = terms.size() == 1 && terms[0].factor == 1;
  if (single && ((form == Form::sum && constant == 0) || (form == Form::product && constant == 1)))
    return terms[0].symbol;
  return {};
}

int64_t SizeExpression::value(std::span<const int64_t> sizes) const {
  int64_t value = constant;
  for (const Term& term : terms) {
    const int64_t size = sizes[term.symbol];
    value = form == Form::product ? value * size : value + term.factor * size;
  }
  return form == Form::quotient ? floor_divided(value, divisor) : value;
}

std::string SizeExpression::text(const std::vector<Symbol>& symbols) const {
  std::string result;
  if (form == Form::product) {
    if (constant != 1) result = std::to_string(constant);
    for (const Term& term : terms) result += (result.empty() ? "" : "*") + symbols[term.symbol].name;
    return result;
  }
  for (const Term& term : terms) {
    if (!result.empty()) result += " + ";
    if (term.factor != 1) result += std::to_string(term.factor) + "*";
    result += symbols[term.symbol].name;
  }
  if (constant != 0 || terms.empty()) {
    if (!result.empty()) result += constant < 0 ? " - " : " + ";
    result += std::to_string(result.empty() ? constant : std::abs(constant));
  }
  return form == Form::quotient ? "floor((" + result + ")/" + std::to_string(divisor) + ")" : result;
}

std::optional<SizeExpression> express(const Varied& number, const std::vector<Symbol>& symbols) {
  if (number.constant()) return SizeExpression{.constant = number.first()};
  const std::vector<size_t> used = causes(number, symbols);
  const auto sum = sum_of(number, symbols, used);
  if (sum && holds(*sum, number, symbols)) return sum;
  const auto product = product_of(number, symbols, used);
  if (product && holds(*product, number, symbols)) return product;
  if (used.size() == 1) return quotient_of(number, symbols, used[0]);
  return {};
}

}  // namespace bellows::export_detail
