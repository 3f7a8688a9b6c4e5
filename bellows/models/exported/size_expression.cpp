#include "bellows/models/exported/size_expression.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace bellows::models::exported {

namespace {

constexpr int kDeepestExpression = 100;
constexpr size_t kLongestExpression = 10'000;  // evaluation is recursive

template <class Operation>
int64_t checked(const char* sign, int64_t a, int64_t b, Operation operation) {
  int64_t result = 0;
  TORCH_CHECK_VALUE(!operation(a, b, &result), "the size ", a, " ", sign, " ", b, " does not fit into 64 bits.");
  return result;
}

int64_t add_sizes(int64_t a, int64_t b) {
  return checked("+", a, b, [](int64_t x, int64_t y, int64_t* out) { return __builtin_add_overflow(x, y, out); });
}
int64_t subtract_sizes(int64_t a, int64_t b) {
  return checked("-", a, b, [](int64_t x, int64_t y, int64_t* out) { return __builtin_sub_overflow(x, y, out); });
}
int64_t multiply_sizes(int64_t a, int64_t b) {
  return checked("*", a, b, [](int64_t x, int64_t y, int64_t* out) { return __builtin_mul_overflow(x, y, out); });
}

void check_divisor(int64_t a, int64_t b) {
  TORCH_CHECK_VALUE(b != 0, "the size ", a, " is divided by 0.");
  TORCH_CHECK_VALUE(a != std::numeric_limits<int64_t>::min() || b != -1, "the size ", a,
                    " / -1 does not fit into 64 bits.");
}

}  // namespace

int64_t floor_divide(int64_t a, int64_t b) {
  check_divisor(a, b);
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t floor_modulo(int64_t a, int64_t b) {
  check_divisor(a, b);
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  TORCH_CHECK_VALUE(exponent >= 0, "the size ", base, " ** ", exponent, " is not an integer.");
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result = multiply_sizes(result, base);  // at most 63 steps, then it throws
  return result;
}

/// Recursive descent over Python's precedence.
class SizeExpressionParser {
 public:
  SizeExpressionParser(std::string_view text, SizeNames& names) : rest_(text), names_(names) { result_.text_ = text; }

  SizeExpression parse() {
    result_.root_ = disjunction();
    skip_spaces();
    if (!rest_.empty()) unsupported();
    std::sort(result_.names_.begin(), result_.names_.end());
    result_.names_.erase(std::unique(result_.names_.begin(), result_.names_.end()), result_.names_.end());
    return std::move(result_);
  }

 private:
  using Kind = SizeExpression::Kind;
  static constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

  [[noreturn]] void unsupported() const { throw UnsupportedExpression("unsupported: " + std::string(rest_)); }
  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  bool take(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void need(std::string_view word) {
    if (!take(word)) unsupported();
  }
  std::string cut(size_t size) {
    const std::string text(rest_.substr(0, size));
    rest_.remove_prefix(text.size());
    return text;
  }

  size_t make(Kind kind, size_t left, size_t right = 0, int64_t number = 0) {
    result_.nodes_.push_back({kind, number, left, right});
    return result_.nodes_.size() - 1;
  }
  size_t constant(int64_t number) { return make(Kind::number, 0, 0, number); }
  size_t name(const std::string& text) {
    const size_t number = names_.add(text);
    result_.names_.push_back(number);
    return make(Kind::name, 0, 0, static_cast<int64_t>(number));
  }

  size_t disjunction() {
    if (++depth_ > kDeepestExpression) unsupported();
    size_t left = conjunction();
    while (take("or ")) left = make(Kind::either, left, conjunction());
    --depth_;
    return left;
  }
  size_t conjunction() {
    size_t left = negation();
    while (take("and ")) left = make(Kind::both, left, negation());
    return left;
  }
  size_t negation() {
    bool negated = false;
    while (take("not ")) negated = !negated;
    const size_t operand = comparison();
    return negated ? make(Kind::negate, operand) : operand;
  }

  std::optional<Kind> comparison_sign() {
    static constexpr std::pair<std::string_view, Kind> signs[] = {{"==", Kind::equal},      {"!=", Kind::unequal},
                                                                  {"<=", Kind::less_equal}, {">=", Kind::greater_equal},
                                                                  {"<", Kind::less},        {">", Kind::greater}};
    for (const auto& [sign, kind] : signs) {
      if (take(sign)) return kind;
    }
    return std::nullopt;
  }
  /// In Python, a < b < c means a < b and b < c.
  size_t comparison() {
    size_t left = sum();
    std::optional<size_t> all;
    while (const std::optional<Kind> sign = comparison_sign()) {
      const size_t right = sum(), one = make(*sign, left, right);
      all = all ? make(Kind::both, *all, one) : one;
      left = right;
    }
    return all.value_or(left);
  }
  size_t sum() {
    size_t left = product();
    for (;;) {
      if (take("+")) {
        left = make(Kind::add, left, product());
      } else if (take("-")) {
        left = make(Kind::subtract, left, product());
      } else {
        return left;
      }
    }
  }
  size_t product() {
    size_t left = signed_power();
    for (;;) {
      if (take("//")) {
        left = make(Kind::floor_divide, left, signed_power());
      } else if (take("*")) {
        left = make(Kind::multiply, left, signed_power());
      } else if (take("%")) {
        left = make(Kind::modulo, left, signed_power());
      } else {
        return left;
      }
    }
  }
  size_t signed_power() {
    bool negative = false;
    while (take("-")) negative = !negative;
    size_t base = atom();
    if (take("**")) base = make(Kind::power, base, atom());
    return negative ? make(Kind::subtract, constant(0), base) : base;
  }

  size_t atom() {
    if (take("(")) {
      const size_t inner = disjunction();
      need(")");
      return inner;
    }
    if (take("L[")) return input();
    skip_spaces();
    if (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') return number();
    const std::string word = cut(std::min(rest_.find_first_not_of(kLetters), rest_.size()));
    if (word.empty()) unsupported();
    if (word == "Symbol") return symbol();
    if (word == "True" || word == "False") return constant(word == "True" ? 1 : 0);
    return take("(") ? function(word) : name(word);
  }
  size_t number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) unsupported();
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    if (rest_.starts_with('.')) unsupported();  // a fraction
    return constant(value);
  }
  /// Symbol('s0', positive=True, integer=True)
  size_t symbol() {
    need("('");
    const std::string text = cut(std::min(rest_.find('\''), rest_.size()));
    const size_t end = rest_.find(')');
    if (end == std::string_view::npos) unsupported();
    rest_.remove_prefix(end + 1);
    return name(text);
  }
  size_t function(const std::string& word) {
    static constexpr std::pair<std::string_view, Kind> functions[] = {{"Add", Kind::add},
                                                                      {"Mul", Kind::multiply},
                                                                      {"Pow", Kind::power},
                                                                      {"FloorDiv", Kind::floor_divide},
                                                                      {"CleanDiv", Kind::floor_divide},
                                                                      {"Mod", Kind::modulo},
                                                                      {"PythonMod", Kind::modulo},
                                                                      {"Max", Kind::maximum},
                                                                      {"max", Kind::maximum},
                                                                      {"Min", Kind::minimum},
                                                                      {"min", Kind::minimum},
                                                                      {"Eq", Kind::equal},
                                                                      {"Ne", Kind::unequal},
                                                                      {"Le", Kind::less_equal},
                                                                      {"Lt", Kind::less},
                                                                      {"Ge", Kind::greater_equal},
                                                                      {"Gt", Kind::greater},
                                                                      {"And", Kind::both},
                                                                      {"Or", Kind::either}};
    size_t result = disjunction();
    if (word == "Integer") {
      need(")");
      return result;
    }
    const auto* const found =
        std::find_if(std::begin(functions), std::end(functions), [&](const auto& one) { return one.first == word; });
    if (found == std::end(functions)) throw UnsupportedExpression("the function " + word);
    while (take(",")) result = make(found->second, result, disjunction());
    need(")");
    return result;
  }
  /// L['x'].size()[0], or L['n'] for a number; nested inputs have more brackets.
  size_t input() {
    std::string path = "L[";
    for (;;) {
      const size_t end = rest_.find(']');
      if (end == std::string_view::npos) unsupported();
      path += cut(end + 1);
      if (!rest_.starts_with('[')) break;
    }
    if (!rest_.starts_with('.')) return name(path);
    const size_t end = rest_.find(']');
    if (!rest_.starts_with(".size()[") || end == std::string_view::npos) unsupported();
    return name(path + cut(end + 1));
  }

  std::string_view rest_;
  SizeNames& names_;
  int depth_ = 0;
  SizeExpression result_;
};

SizeExpression SizeExpression::parse(std::string_view text, SizeNames& names) {
  if (text.size() > kLongestExpression) throw UnsupportedExpression("an expression of more than 10,000 characters");
  return SizeExpressionParser(text, names).parse();
}

int64_t SizeExpression::value_of(size_t index, const SizeValues& values) const {
  const Node& node = nodes_[index];
  if (node.kind == Kind::number) return node.number;
  if (node.kind == Kind::name) return values.at(static_cast<size_t>(node.number)).value();
  const int64_t a = value_of(node.left, values);
  if (node.kind == Kind::negate) return a == 0;
  if (node.kind == Kind::both && a == 0) return 0;
  if (node.kind == Kind::either && a != 0) return 1;
  const int64_t b = value_of(node.right, values);
  return node.kind < Kind::equal ? arithmetic(node.kind, a, b) : compare(node.kind, a, b);
}

int64_t SizeExpression::arithmetic(Kind kind, int64_t a, int64_t b) {
  switch (kind) {
    case Kind::add:
      return add_sizes(a, b);
    case Kind::subtract:
      return subtract_sizes(a, b);
    case Kind::multiply:
      return multiply_sizes(a, b);
    case Kind::floor_divide:
      return floor_divide(a, b);
    case Kind::modulo:
      return floor_modulo(a, b);
    case Kind::power:
      return integer_power(a, b);
    case Kind::maximum:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

bool SizeExpression::compare(Kind kind, int64_t a, int64_t b) {
  switch (kind) {
    case Kind::equal:
      return a == b;
    case Kind::unequal:
      return a != b;
    case Kind::less:
      return a < b;
    case Kind::less_equal:
      return a <= b;
    case Kind::greater:
      return a > b;
    case Kind::greater_equal:
      return a >= b;
    default:
      return b != 0;  // both, either
  }
}

}  // namespace bellows::models::exported
