#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bellows::models::exported {

/// The named sizes of a program: symbols such as "s0", and sizes of inputs such as "L['x'].size()[0]".
class SizeNames {
 public:
  /// Returns the number of a name, and adds the name if it is new.
  size_t add(const std::string& name) { return numbers_.emplace(name, numbers_.size()).first->second; }
  std::optional<size_t> find(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::unordered_map<std::string, size_t> numbers_;
};

/// The values of named sizes, by number. Sizes without a value are not known yet.
using SizeValues = std::vector<std::optional<int64_t>>;

/// The exporter wrote an expression of a kind that this parser does not support.
struct UnsupportedExpression : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An integer expression over named sizes. It is parsed once, and evaluated in each call of the program.
/// The parser accepts the two forms of torch.export: SymPy's representation, such as "Mul(Integer(2), Symbol('s0'))", and
/// Python, such as "L['x'].size()[0] <= 64". True and false are 1 and 0.
class SizeExpression {
 public:
  /// Throws: UnsupportedExpression
  static SizeExpression parse(std::string_view text, SizeNames& names);

  /// Numbers of the names in the expression.
  const std::vector<size_t>& names() const { return names_; }
  /// Throws: c10::ValueError if a result does not fit into 64 bits or a divisor is 0
  int64_t value(const SizeValues& values) const { return value_of(root_, values); }
  const std::string& text() const { return text_; }

 private:
  friend class SizeExpressionParser;
  enum class Kind {
    number,
    name,
    add,
    subtract,
    multiply,
    floor_divide,
    modulo,
    power,
    maximum,
    minimum,
    equal,
    unequal,
    less,
    less_equal,
    greater,
    greater_equal,
    both,
    either,
    negate
  };
  struct Node {
    Kind kind = Kind::number;
    int64_t number = 0;          ///< of a constant, or the number of a name
    size_t left = 0, right = 0;  ///< operands
  };

  int64_t value_of(size_t node, const SizeValues& values) const;
  static int64_t arithmetic(Kind kind, int64_t a, int64_t b);
  static bool compare(Kind kind, int64_t a, int64_t b);

  std::string text_;
  std::vector<Node> nodes_;
  size_t root_ = 0;
  std::vector<size_t> names_;
};

/// Integer arithmetic as Python defines it. Throws: c10::ValueError on overflow and division by 0
int64_t floor_divide(int64_t a, int64_t b);
int64_t floor_modulo(int64_t a, int64_t b);
int64_t integer_power(int64_t base, int64_t exponent);

}  // namespace bellows::models::exported
