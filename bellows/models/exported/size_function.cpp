#include "bellows/models/exported/size_function.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "bellows/models/exported/size_expression.h"

namespace bellows::models::exported {

namespace {

using Arguments = std::vector<c10::IValue>;

bool is_float(const c10::IValue& value) {
  return value.isDouble() || (value.isTensor() && value.toTensor().is_floating_point());
}
double as_double(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item().toDouble() : value.toScalar().toDouble();
}
int64_t as_integer(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item().toLong() : value.toScalar().toLong();
}
bool as_truth(const c10::IValue& value) {
  return is_float(value) ? as_double(value) != 0 : as_integer(value) != 0;
}

/// Applies the integer function if both arguments are integers.
template <class Integers, class Floats>
c10::IValue of_two(const Arguments& a, Integers integers, Floats floats) {
  if (is_float(a[0]) || is_float(a[1])) return c10::IValue(floats(as_double(a[0]), as_double(a[1])));
  return c10::IValue(integers(as_integer(a[0]), as_integer(a[1])));
}
template <class Compare>
c10::IValue compared(const Arguments& a, Compare compare) {
  return of_two(a, compare, compare);
}

template <class Integer>
int64_t whole(double value, Integer rounded) {
  const double result = rounded(value);
  constexpr double limit = 9.2e18;
  TORCH_CHECK_VALUE(std::abs(result) < limit, "expected a number that fits into 64 bits, got ", value, ".");
  return static_cast<int64_t>(result);
}
template <class Rounded>
c10::IValue rounded(const c10::IValue& value, Rounded function) {
  return is_float(value) ? c10::IValue(whole(as_double(value), function)) : c10::IValue(as_integer(value));
}

template <class Overflow>
auto without_overflow(Overflow overflow) {
  return [overflow](int64_t a, int64_t b) {
    int64_t result = 0;
    TORCH_CHECK_VALUE(!overflow(a, b, &result), "the result of ", a, " and ", b, " does not fit into 64 bits.");
    return result;
  };
}

c10::IValue add(const Arguments& a) {
  return of_two(a, without_overflow([](auto x, auto y, auto* out) { return __builtin_add_overflow(x, y, out); }),
                std::plus<double>());
}
c10::IValue subtract(const Arguments& a) {
  return of_two(a, without_overflow([](auto x, auto y, auto* out) { return __builtin_sub_overflow(x, y, out); }),
                std::minus<double>());
}
c10::IValue multiply(const Arguments& a) {
  return of_two(a, without_overflow([](auto x, auto y, auto* out) { return __builtin_mul_overflow(x, y, out); }),
                std::multiplies<double>());
}
c10::IValue negative(const Arguments& a) {
  if (is_float(a[0])) return c10::IValue(-as_double(a[0]));
  return subtract({c10::IValue(int64_t{0}), a[0]});
}
c10::IValue floor_division(const Arguments& a) {
  return of_two(a, floor_divide, [](double x, double y) { return std::floor(x / y); });
}
c10::IValue modulo(const Arguments& a) {
  return of_two(a, floor_modulo, [](double x, double y) { return x - std::floor(x / y) * y; });
}
c10::IValue power(const Arguments& a) {
  if (!is_float(a[0]) && !is_float(a[1]) && as_integer(a[1]) >= 0)
    return c10::IValue(integer_power(as_integer(a[0]), as_integer(a[1])));
  return c10::IValue(std::pow(as_double(a[0]), as_double(a[1])));
}
c10::IValue true_division(const Arguments& a) {
  TORCH_CHECK_VALUE(as_double(a[1]) != 0, "a size is divided by 0.");
  return c10::IValue(as_double(a[0]) / as_double(a[1]));
}
c10::IValue maximum(const Arguments& a) {
  const auto larger = [](auto x, auto y) { return std::max(x, y); };
  return of_two(a, larger, larger);
}
c10::IValue minimum(const Arguments& a) {
  const auto smaller = [](auto x, auto y) { return std::min(x, y); };
  return of_two(a, smaller, smaller);
}

constexpr auto trunc_of = [](const Arguments& a) { return rounded(a[0], [](double x) { return std::trunc(x); }); };
constexpr auto sqrt_of = [](const Arguments& a) { return c10::IValue(std::sqrt(as_double(a[0]))); };

constexpr std::array size_functions{
    NamedSizeFunction{"_operator.add", 2, add},
    NamedSizeFunction{"_operator.sub", 2, subtract},
    NamedSizeFunction{"_operator.mul", 2, multiply},
    NamedSizeFunction{"_operator.neg", 1, negative},
    NamedSizeFunction{"_operator.pos", 1, [](const Arguments& a) { return a[0]; }},
    NamedSizeFunction{"_operator.floordiv", 2, floor_division},
    NamedSizeFunction{"_operator.truediv", 2, true_division},
    NamedSizeFunction{"_operator.mod", 2, modulo},
    NamedSizeFunction{"_operator.pow", 2, power},
    NamedSizeFunction{"_operator.eq", 2, [](const Arguments& a) { return compared(a, std::equal_to<>()); }},
    NamedSizeFunction{"_operator.ne", 2, [](const Arguments& a) { return compared(a, std::not_equal_to<>()); }},
    NamedSizeFunction{"_operator.lt", 2, [](const Arguments& a) { return compared(a, std::less<>()); }},
    NamedSizeFunction{"_operator.le", 2, [](const Arguments& a) { return compared(a, std::less_equal<>()); }},
    NamedSizeFunction{"_operator.gt", 2, [](const Arguments& a) { return compared(a, std::greater<>()); }},
    NamedSizeFunction{"_operator.ge", 2, [](const Arguments& a) { return compared(a, std::greater_equal<>()); }},
    NamedSizeFunction{"_operator.and_", 2,
                      [](const Arguments& a) { return c10::IValue(as_truth(a[0]) && as_truth(a[1])); }},
    NamedSizeFunction{"_operator.or_", 2,
                      [](const Arguments& a) { return c10::IValue(as_truth(a[0]) || as_truth(a[1])); }},
    NamedSizeFunction{"_operator.not_", 1, [](const Arguments& a) { return c10::IValue(!as_truth(a[0])); }},
    NamedSizeFunction{"torch.sym_not", 1, [](const Arguments& a) { return c10::IValue(!as_truth(a[0])); }},
    NamedSizeFunction{"torch.sym_ite", 3, [](const Arguments& a) { return as_truth(a[0]) ? a[1] : a[2]; }},
    NamedSizeFunction{"torch.sym_max", 2, maximum},
    NamedSizeFunction{"torch.sym_min", 2, minimum},
    NamedSizeFunction{"torch.sym_int", 1, trunc_of},
    NamedSizeFunction{"math.trunc", 1, trunc_of},
    NamedSizeFunction{"math.floor", 1,
                      [](const Arguments& a) { return rounded(a[0], [](double x) { return std::floor(x); }); }},
    NamedSizeFunction{"math.ceil", 1,
                      [](const Arguments& a) { return rounded(a[0], [](double x) { return std::ceil(x); }); }},
    NamedSizeFunction{"torch.sym_float", 1, [](const Arguments& a) { return c10::IValue(as_double(a[0])); }},
    NamedSizeFunction{"torch.sym_sqrt", 1, sqrt_of},
    NamedSizeFunction{"torch._sym_sqrt", 1, sqrt_of},
};

}  // namespace

const NamedSizeFunction* find_size_function(std::string_view target) {
  const auto* const found = std::find_if(size_functions.begin(), size_functions.end(),
                                         [&](const NamedSizeFunction& one) { return one.name == target; });
  return found == size_functions.end() ? nullptr : found;
}

}  // namespace bellows::models::exported
