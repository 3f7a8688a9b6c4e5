#include "bellows/export/translated_operator.h"

#include <algorithm>
#include <cmath>

namespace bellows::export_detail {

namespace {

int64_t wrapped(int64_t dim, int64_t rank) {
  return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim;
}

}  // namespace

bool TranslatedOperator::has(size_t index) const {
  const auto& one = argument(index);
  if (one.is_tensors()) return !one.operands.empty() && one.operands[0].value >= 0;
  return !one.constant.isNone();
}

size_t TranslatedOperator::list_size(size_t index) const {
  return argument(index).operands.size();
}

int64_t TranslatedOperator::fixed_size(size_t index, int64_t dim) const {
  const VariedSizes all = sizes(index);
  const Varied& one = all.at(wrapped(dim, static_cast<int64_t>(all.size())));
  if (!one.constant())
    fail("operator " + name() + " needs a fixed size of dim " + std::to_string(dim), "Do not let this axis vary.");
  return one.first();
}

Varied TranslatedOperator::varied(size_t index) const {
  Varied result;
  for (size_t i = 0; i < graph_.count(); ++i) {
    const c10::IValue& value = argument(index, i).constant;
    result.values.push_back(value.isInt()    ? value.toInt()
                            : value.isBool() ? value.toBool()
                                             : static_cast<int64_t>(value.toScalar().toDouble()));
  }
  return result;
}

int64_t TranslatedOperator::integer(size_t index) const {
  const Varied number = varied(index);
  if (!number.constant())
    fail("argument " + std::to_string(index) + " of operator " + name() + " varies with the sizes of the inputs",
         std::string(target_) + " needs a fixed number there.");
  return number.first();
}

VariedSizes TranslatedOperator::varied_list(size_t index) const {
  VariedSizes result;
  for (size_t i = 0; i < graph_.count(); ++i) {
    const c10::IValue& constant = argument(index, i).constant;
    const std::vector<int64_t> values =
        constant.isInt() ? std::vector<int64_t>{constant.toInt()} : constant.toIntVector();
    result.resize(values.size());
    for (size_t k = 0; k < values.size(); ++k) result[k].values.push_back(values[k]);
  }
  return result;
}

std::vector<int64_t> TranslatedOperator::integers(size_t index) const {
  std::vector<int64_t> result;
  for (const Varied& one : varied_list(index)) {
    if (!one.constant())
      fail("argument " + std::to_string(index) + " of operator " + name() + " varies with the sizes of the inputs",
           std::string(target_) + " needs fixed numbers there.");
    result.push_back(one.first());
  }
  return result;
}

double TranslatedOperator::number(size_t index) const {
  const auto value = [&](size_t recording) { return argument(index, recording).constant.toScalar().toDouble(); };
  for (size_t i = 1; i < graph_.count(); ++i) {
    if (value(i) != value(0))
      fail("argument " + std::to_string(index) + " of operator " + name() +
               ", a number, varies with the sizes of the "
               "inputs",
           "Compute it with operators on tensors, or do not let the axis vary.");
  }
  return value(0);
}

std::optional<Varied> TranslatedOperator::varied_number(size_t index) const {
  constexpr double largest = 1e15;
  Varied whole;
  for (size_t i = 0; i < graph_.count(); ++i) {
    const double value = argument(index, i).constant.toScalar().toDouble();
    if (value != std::floor(value) || std::abs(value) >= largest) return {};
    whole.values.push_back(static_cast<int64_t>(value));
  }
  return whole;
}

bool TranslatedOperator::flag(size_t index) const {
  return argument(index).constant.isBool() && argument(index).constant.toBool();
}

std::string TranslatedOperator::text(size_t index) const {
  return argument(index).constant.toStringRef();
}

int64_t TranslatedOperator::dim(size_t index, int64_t rank) const {
  return wrapped(integer(index), rank);
}

std::vector<int64_t> TranslatedOperator::dims(size_t index, int64_t rank) const {
  std::vector<int64_t> result;
  if (has(index)) result = integers(index);
  for (int64_t& one : result) one = wrapped(one, rank);
  return result;
}

}  // namespace bellows::export_detail
