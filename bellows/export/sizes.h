#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bellows::export_detail {

/// The values of one number, such as a size, in all recordings of a function.
struct Varied {
  std::vector<int64_t> values{};

  bool constant() const;
  /// Whether the number is `value` in all recordings.
  bool is(int64_t value) const;
  int64_t first() const { return values.front(); }
  bool operator==(const Varied& other) const = default;
};

/// Returns a number with the same value in all recordings.
Varied fixed(int64_t value, size_t recordings);
/// Returns the value of `number` minus the value of `other`, for each recording.
Varied minus(const Varied& number, const Varied& other);

/// Sizes with the same numbers in all recordings.
using VariedSizes = std::vector<Varied>;

/// The name of an axis whose size differs between recordings, and its size in each of them.
struct Symbol {
  std::string name{};
  Varied sizes{};
};

/// A number as a function of symbols: constant + Σ factor · symbol, or factor · Π symbols, or floor((symbol + shift) /
/// divisor).
struct SizeExpression {
  enum class Form { sum, product, quotient };
  struct Term {
    size_t symbol = 0;
    int64_t factor = 1;
  };

  Form form = Form::sum;
  int64_t constant = 0;  ///< of a product: its factor; of a quotient: the shift
  int64_t divisor = 1;
  std::vector<Term> terms{};

  /// Params: sizes – one for each symbol
  int64_t value(std::span<const int64_t> sizes) const;
  /// Returns the symbol if the expression is just this symbol.
  std::optional<size_t> symbol() const;
  /// Returns a text such as "2*sequence + 1".
  std::string text(const std::vector<Symbol>& symbols) const;
};

/// Finds the expression of a number that varies. Recording 0 has the first size of each symbol, recording 1 + i another
/// size of symbol i only, and the last recording other sizes of all symbols. The expression holds in all of them.
/// Returns: nothing if there is no expression of these forms
std::optional<SizeExpression> express(const Varied& number, const std::vector<Symbol>& symbols);

}  // namespace bellows::export_detail
