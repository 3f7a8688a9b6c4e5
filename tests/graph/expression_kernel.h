#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "bellows/graph/passes/expression.h"

namespace bellows::graph::testing {

/// Evaluates an expression one place after the other, one term after the other: what generated code is held to.
class ExpressionKernel : public Kernel {
 public:
  ExpressionKernel(Expression expression, std::vector<int> numbers)
      : expression_(std::move(expression)), numbers_(std::move(numbers)) {
    for (const int64_t places : expression_.loops) places_ *= places;
  }
  std::string name() const override { return "expression"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void*) const override {
    std::vector<std::vector<double>> all;
    all.reserve(expression_.terms.size());
    for (const Term& term : expression_.terms) {
      std::vector<double> made(places_);
      if (is_reduction(term.function)) {
        reduce(term, all[term.terms[0]], made);
      } else {
        for (int64_t at = 0; at < places_; ++at) made[at] = value(term, at, all, operands, numbers);
      }
      all.push_back(std::move(made));
    }
    for (const Store& store : expression_.stores) {
      void* const to = store.update ? operands[store.index] : results[store.index];
      for (int64_t at = 0; at < places_; ++at)
        write(store, place(store.strides, at) + store.offset, to, all[store.term][at]);
    }
  }

 private:
  int64_t place(const Term::Numbers& strides, int64_t at) const {
    int64_t result = 0;
    for (size_t i = strides.size(); i-- > 0; at /= expression_.loops[i])
      result += at % expression_.loops[i] * strides[i];
    return result;
  }
  int64_t without(uint64_t loops, int64_t at) const {
    int64_t result = 0, factor = 1;
    for (size_t i = expression_.loops.size(); i-- > 0; at /= expression_.loops[i]) {
      if (!(loops >> i & 1)) result += at % expression_.loops[i] * factor;
      factor *= expression_.loops[i];
    }
    return result;
  }

  void reduce(const Term& term, const std::vector<double>& from, std::vector<double>& to) const {
    std::vector<bool> begun(places_, false);
    for (int64_t at = 0; at < places_; ++at) {
      double& kept = to[without(term.reduced, at)];
      const double next = from[at];
      const bool first = !begun[without(term.reduced, at)];
      begun[without(term.reduced, at)] = true;
      switch (term.function) {
        case Function::sum:
          kept = first ? next : kept + next;
          break;
        case Function::product:
          kept = first ? next : kept * next;
          break;
        case Function::max:
          kept = first || next > kept || std::isnan(next) ? next : kept;
          break;
        case Function::min:
          kept = first || next < kept || std::isnan(next) ? next : kept;
          break;
        default:
          ADD_FAILURE() << name_of(term.function);
      }
    }
    for (int64_t at = 0; at < places_; ++at) to[at] = to[without(term.reduced, at)];
  }

  double value(const Term& term, int64_t at, const std::vector<std::vector<double>>& all,
               std::span<void* const> operands, std::span<const c10::IValue> numbers) const {
    if (term.function == Function::load)
      return read(term.type, operands[term.index], place(term.strides, at) + term.offset);
    if (term.function == Function::constant) return rounded(term.type, term.value);
    if (term.function == Function::number) {
      const c10::IValue& number = numbers[numbers_.at(term.index)];
      return rounded(term.type, number.isInt() ? static_cast<double>(number.toInt()) : number.toDouble());
    }
    const auto x = [&](int i) { return all[term.terms[i]][at]; };
    return rounded(term.type, compute(term, arity(term.function) > 0 ? x(0) : 0, arity(term.function) > 1 ? x(1) : 0,
                                      arity(term.function) > 2 ? x(2) : 0));
  }

  // NOLINTNEXTLINE(readability-function-size): one case per function of expressions
  static double compute(const Term& term, double a, double b, double c) {
    using F = Function;
    switch (term.function) {
      case F::cast:
        return term.type == c10::kBool ? a != 0 : c10::isFloatingType(term.type) ? a : std::trunc(a);
      case F::neg:
        return -a;
      case F::abs:
        return std::abs(a);
      case F::sign:
        return static_cast<double>((a > 0) - (a < 0));
      case F::exp:
        return std::exp(a);
      case F::exp2:
        return std::exp2(a);
      case F::expm1:
        return std::expm1(a);
      case F::log:
        return std::log(a);
      case F::log2:
        return std::log2(a);
      case F::log10:
        return std::log10(a);
      case F::log1p:
        return std::log1p(a);
      case F::sqrt:
        return std::sqrt(a);
      case F::rsqrt:
        return 1 / std::sqrt(a);
      case F::reciprocal:
        return 1 / a;
      case F::sin:
        return std::sin(a);
      case F::cos:
        return std::cos(a);
      case F::tan:
        return std::tan(a);
      case F::asin:
        return std::asin(a);
      case F::acos:
        return std::acos(a);
      case F::atan:
        return std::atan(a);
      case F::sinh:
        return std::sinh(a);
      case F::cosh:
        return std::cosh(a);
      case F::tanh:
        return std::tanh(a);
      case F::erf:
        return std::erf(a);
      case F::erfc:
        return std::erfc(a);
      case F::floor:
        return std::floor(a);
      case F::ceil:
        return std::ceil(a);
      case F::round:
        return std::nearbyint(a);
      case F::trunc:
        return std::trunc(a);
      case F::isnan:
        return std::isnan(a);
      case F::logical_not:
        return !a;
      case F::bitwise_not:
        return static_cast<double>(~static_cast<int64_t>(a));
      case F::add:
        return a + b;
      case F::sub:
        return a - b;
      case F::mul:
        return a * b;
      case F::div:
        return a / b;
      case F::fmod:
        return std::fmod(a, b);
      case F::pow:
        return std::pow(a, b);
      case F::atan2:
        return std::atan2(a, b);
      case F::maximum:
        return std::isnan(a) || a > b ? a : b;
      case F::minimum:
        return std::isnan(a) || a < b ? a : b;
      case F::eq:
        return a == b;
      case F::ne:
        return a != b;
      case F::lt:
        return a < b;
      case F::le:
        return a <= b;
      case F::gt:
        return a > b;
      case F::ge:
        return a >= b;
      case F::logical_and:
        return a && b;
      case F::logical_or:
        return a || b;
      case F::logical_xor:
        return !a != !b;
      case F::bitwise_and:
        return static_cast<double>(static_cast<int64_t>(a) & static_cast<int64_t>(b));
      case F::where:
        return a ? b : c;
      default:
        ADD_FAILURE() << name_of(term.function);
        return 0;
    }
  }

  static double rounded(c10::ScalarType type, double value) {
    if (type == c10::kFloat) return static_cast<float>(value);
    if (type == c10::kBFloat16) return static_cast<float>(c10::BFloat16(static_cast<float>(value)));
    if (type == c10::kHalf) return static_cast<float>(c10::Half(static_cast<float>(value)));
    return value;
  }

  template <class T>
  static double at(const void* data, int64_t place) {
    return static_cast<double>(static_cast<const T*>(data)[place]);
  }
  static double read(c10::ScalarType type, const void* data, int64_t place) {
    switch (type) {
      case c10::kFloat:
        return at<float>(data, place);
      case c10::kDouble:
        return at<double>(data, place);
      case c10::kBFloat16:
        return at<c10::BFloat16>(data, place);
      case c10::kHalf:
        return at<c10::Half>(data, place);
      case c10::kLong:
        return at<int64_t>(data, place);
      case c10::kInt:
        return at<int32_t>(data, place);
      case c10::kBool:
        return at<bool>(data, place);
      case c10::kByte:
        return at<uint8_t>(data, place);
      default:
        ADD_FAILURE() << c10::toString(type);
        return 0;
    }
  }
  static void write(const Store& store, int64_t place, void* data, double value) {
    switch (store.type) {
      case c10::kFloat:
        static_cast<float*>(data)[place] = static_cast<float>(value);
        break;
      case c10::kDouble:
        static_cast<double*>(data)[place] = value;
        break;
      case c10::kBFloat16:
        static_cast<c10::BFloat16*>(data)[place] = static_cast<float>(value);
        break;
      case c10::kHalf:
        static_cast<c10::Half*>(data)[place] = static_cast<float>(value);
        break;
      case c10::kLong:
        static_cast<int64_t*>(data)[place] = static_cast<int64_t>(value);
        break;
      case c10::kInt:
        static_cast<int32_t*>(data)[place] = static_cast<int32_t>(value);
        break;
      case c10::kBool:
        static_cast<bool*>(data)[place] = value != 0;
        break;
      case c10::kByte:
        static_cast<uint8_t*>(data)[place] = static_cast<uint8_t>(value);
        break;
      default:
        ADD_FAILURE() << c10::toString(store.type);
    }
  }

  Expression expression_;
  std::vector<int> numbers_;  ///< by index of a term: which of those that a run gives
  int64_t places_ = 1;
};

/// What a group computes, one expression after the other.
class GroupKernel : public Kernel {
 public:
  explicit GroupKernel(const graph::Program& group) {
    std::vector<int> numbers(group.numbers.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    for (const Expression& expression : expressions_of(group)) parts_.emplace_back(expression, numbers);
    EXPECT_FALSE(parts_.empty()) << group.to_text();
  }
  std::string name() const override { return "expression"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override {
    for (const ExpressionKernel& part : parts_) part.run(operands, results, numbers, scratch);
  }

 private:
  std::vector<ExpressionKernel> parts_;
};

}  // namespace bellows::graph::testing
