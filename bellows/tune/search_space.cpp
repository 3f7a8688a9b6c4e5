#include "bellows/tune/search_space.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "bellows/core/seed.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::tune {

namespace {

constexpr int64_t most_configurations = 1'000'000'000'000'000;
constexpr double largest_integer = 9e15;  // integers up to this size are exact doubles

int64_t product(int64_t a, int64_t b) {
  return a > most_configurations / std::max<int64_t>(b, 1) ? most_configurations : a * b;
}

void check_parameter(const Parameter& p) {
  if (p.kind == Parameter::Kind::choice) {
    TORCH_CHECK_VALUE(!p.choices.empty(), "tune: ", p.name, ": the list of values is empty. Add at least one value.");
    const std::set<std::string> distinct(p.choices.begin(), p.choices.end());
    TORCH_CHECK_VALUE(distinct.size() == p.choices.size(), "tune: ", p.name,
                      ": a value occurs twice in the list. Remove one of them.");
    return;
  }
  TORCH_CHECK_VALUE(std::isfinite(p.low) && std::isfinite(p.high) && p.low <= p.high, "tune: ", p.name,
                    ": expected a range whose first number is not greater than the second, got [", p.low, ", ", p.high,
                    "].");
  TORCH_CHECK_VALUE(!p.log || p.low > 0, "tune: ", p.name, ": a logarithmic range must start above 0, got ", p.low,
                    ".");
  TORCH_CHECK_VALUE(p.step >= 0 && p.step <= std::max(p.high - p.low, 1.0), "tune: ", p.name,
                    ": step must be positive and not greater than the range, got ", p.step, ".");
  TORCH_CHECK_VALUE(!p.log || p.low > p.step / 2, "tune: ", p.name,
                    ": the step of a logarithmic range must be less than twice its first number, ", p.low, ", got ",
                    p.step, ". Use a smaller step, or none.");
  TORCH_CHECK_VALUE(p.kind != Parameter::Kind::integer || (p.step >= 1 && p.step == std::floor(p.step)),
                    "tune: ", p.name, ": the step of integers must be an integer of at least 1, got ", p.step, ".");
  TORCH_CHECK_VALUE(p.points >= 1, "tune: ", p.name, ": points must be at least 1, got ", p.points, ".");
  const bool whole = p.low == std::floor(p.low) && p.high == std::floor(p.high) &&
                     std::max(std::abs(p.low), std::abs(p.high)) <= largest_integer;
  TORCH_CHECK_VALUE(p.kind != Parameter::Kind::integer || whole, "tune: ", p.name,
                    ": a range of integers needs integers as its ends, got [", p.low, ", ", p.high, "].");
}

/// Six significant digits, so that values are short in recipes and tables.
double rounded(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return std::strtod(text.data(), nullptr);
}

}  // namespace

int64_t Parameter::count() const {
  if (kind == Kind::choice) return static_cast<int64_t>(choices.size());
  if (low == high) return 1;
  return step > 0 ? static_cast<int64_t>(std::floor((high - low) / step + 1e-9)) + 1 : 0;
}

double Parameter::inner_low() const {
  const double end = low - step / 2;
  return log ? std::log(end) : end;
}

double Parameter::inner_high() const {
  const double end = high + step / 2;
  return log ? std::log(end) : end;
}

double Parameter::from_inner(double number) const {
  const double value = log ? std::exp(number) : number;
  const double stepped = step > 0 ? low + std::round((value - low) / step) * step : rounded(value);
  const double last = step > 0 ? low + static_cast<double>(count() - 1) * step : high;
  return std::clamp(stepped, low, last);
}

double Parameter::draw(RandomStream& random) const {
  if (kind == Kind::choice) return static_cast<double>(random.below(choices.size()));
  return from_inner(inner_low() + random.uniform() * (inner_high() - inner_low()));
}

std::vector<double> Parameter::grid() const {
  const bool counted = count() > 0;
  const int64_t size = counted ? count() : points;
  const double from = log ? std::log(low) : low, to = log ? std::log(high) : high;
  std::vector<double> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const double share = size > 1 ? static_cast<double>(i) / static_cast<double>(size - 1) : 0;
    const double stepped = kind == Kind::choice ? static_cast<double>(i) : low + static_cast<double>(i) * step;
    values[static_cast<size_t>(i)] = counted ? stepped : from_inner(from + share * (to - from));
  }
  return values;
}

std::string Parameter::text(double value) const {
  if (kind == Kind::choice) return choices.at(static_cast<size_t>(value));
  return kind == Kind::integer ? std::to_string(static_cast<int64_t>(value)) : io::float_text(value);
}

void SearchSpace::check() const {
  TORCH_CHECK_VALUE(!parameters.empty(), "tune: the search space is empty. Add at least one recipe key to `space`.");
  std::set<std::string> seen;
  for (const Parameter& parameter : parameters) {
    TORCH_CHECK_VALUE(seen.insert(parameter.name).second, "tune: the search space contains ", parameter.name,
                      " twice. Remove one of them.");
    check_parameter(parameter);
  }
}

int64_t SearchSpace::count() const {
  int64_t result = 1;
  for (const Parameter& parameter : parameters) {
    if (parameter.count() == 0) return 0;
    result = product(result, parameter.count());
  }
  return result;
}

Assignment SearchSpace::draw(RandomStream& random) const {
  Assignment values;
  values.reserve(parameters.size());
  for (const Parameter& parameter : parameters) values.push_back(parameter.draw(random));
  return values;
}

int64_t SearchSpace::grid_count() const {
  int64_t result = 1;
  for (const Parameter& parameter : parameters)
    result = product(result, parameter.count() > 0 ? parameter.count() : parameter.points);
  return result;
}

Assignment SearchSpace::grid_point(int64_t index) const {
  Assignment values(parameters.size());
  for (size_t i = parameters.size(); i-- > 0;) {
    const std::vector<double> grid = parameters[i].grid();
    const auto size = static_cast<int64_t>(grid.size());
    values[i] = grid[static_cast<size_t>(index % size)];
    index /= size;
  }
  return values;
}

std::string SearchSpace::text(const Assignment& values) const {
  std::string result;
  for (size_t i = 0; i < parameters.size(); ++i)
    result += (i > 0 ? " " : "") + parameters[i].name + "=" + parameters[i].text(values.at(i));
  return result;
}

}  // namespace bellows::tune
