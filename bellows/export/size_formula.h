#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bellows/export/sizes.h"

namespace bellows::export_detail {

/// A number of a program as a function of symbols: factor · Π parts.
struct SizeFormula {
  int64_t factor = 1;
  std::vector<SizeExpression> parts{};

  /// Params: sizes – one for each symbol
  int64_t value(std::span<const int64_t> sizes) const;
  bool constant() const { return parts.empty(); }
};

/// Finds formulas. Equal numbers are looked up only once.
class SizeFormulas {
 public:
  /// Params: symbols – must outlive the object
  explicit SizeFormulas(const std::vector<Symbol>& symbols) : symbols_(symbols) {}

  /// Remembers a size, because strides and sizes of buffers are products of sizes.
  void add_size(const Varied& size);
  /// Returns the formula of a number, or nothing if it has none.
  std::optional<SizeFormula> of(const Varied& number);

 private:
  static constexpr int most_parts = 4;

  std::optional<SizeFormula> find(const Varied& number) const;
  /// Finds sizes whose product, times a constant, is the number.
  bool divide(const std::vector<int64_t>& left, size_t from, int most, std::vector<size_t>& parts) const;

  const std::vector<Symbol>& symbols_;
  std::vector<std::pair<Varied, SizeExpression>> sizes_;
  std::map<std::vector<int64_t>, std::optional<SizeExpression>> known_;
  std::map<std::vector<int64_t>, std::optional<std::optional<SizeFormula>>> formulas_;
};

}  // namespace bellows::export_detail
