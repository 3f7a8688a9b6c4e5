#include "bellows/export/size_formula.h"

#include <algorithm>

namespace bellows::export_detail {

int64_t SizeFormula::value(std::span<const int64_t> sizes) const {
  int64_t result = factor;
  for (const SizeExpression& part : parts) result *= part.value(sizes);
  return result;
}

void SizeFormulas::add_size(const Varied& size) {
  if (size.constant() || known_.contains(size.values)) return;
  auto expression = express(size, symbols_);
  if (!expression) return;
  if (expression->form == SizeExpression::Form::product) return;  // a product of other sizes
  known_.emplace(size.values, std::nullopt);
  sizes_.emplace_back(size, std::move(*expression));
}

std::optional<SizeFormula> SizeFormulas::of(const Varied& number) {
  auto& found = formulas_[number.values];
  if (!found) found = find(number);
  return *found;
}

std::optional<SizeFormula> SizeFormulas::find(const Varied& number) const {
  if (number.constant()) return SizeFormula{.factor = number.first()};
  if (auto simple = express(number, symbols_)) return SizeFormula{.factor = 1, .parts = {std::move(*simple)}};
  std::vector<size_t> parts;
  if (!divide(number.values, 0, most_parts, parts)) return {};
  SizeFormula formula{.factor = number.first()};
  for (const size_t part : parts) {
    formula.factor /= sizes_[part].first.first();
    formula.parts.push_back(sizes_[part].second);
  }
  return formula;
}

bool SizeFormulas::divide(const std::vector<int64_t>& left, size_t from, int most, std::vector<size_t>& parts) const {
  if (std::all_of(left.begin(), left.end(), [&](int64_t value) { return value == left.front(); })) return true;
  for (size_t i = from; most > 0 && i < sizes_.size(); ++i) {
    std::vector<int64_t> quotient = left;
    bool divides = true;
    for (size_t r = 0; divides && r < left.size(); ++r) {
      const int64_t by = sizes_[i].first.values[r];
      divides = by != 0 && left[r] % by == 0;
      if (divides) quotient[r] /= by;
    }
    if (!divides) continue;
    parts.push_back(i);
    if (divide(quotient, i, most - 1, parts)) return true;
    parts.pop_back();
  }
  return false;
}

}  // namespace bellows::export_detail
