#pragma once

#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "bellows/tune/study.h"

/// Functions to minimize, the same as in tools/goldens/tune.py.
namespace bellows::tune {

struct TestFunction {
  std::string name;
  SearchSpace space;
  double (*value)(const Assignment& x);
};

inline double branin(const Assignment& x) {
  constexpr double pi = std::numbers::pi;
  return std::pow(x[1] - 5.1 / (4 * pi * pi) * x[0] * x[0] + 5 / pi * x[0] - 6, 2) +
         10 * (1 - 1 / (8 * pi)) * std::cos(x[0]) + 10;
}

inline double hartmann6(const Assignment& x) {
  constexpr double a[4][6] = {
      {10, 3, 17, 3.5, 1.7, 8}, {0.05, 10, 17, 0.1, 8, 14}, {3, 3.5, 1.7, 10, 17, 8}, {17, 8, 0.05, 10, 0.1, 14}};
  constexpr double p[4][6] = {{1312, 1696, 5569, 124, 8283, 5886},
                              {2329, 4135, 8307, 3736, 1004, 9991},
                              {2348, 1451, 3522, 2883, 3047, 6650},
                              {4047, 8828, 8732, 5743, 1091, 381}};
  constexpr std::array<double, 4> alpha = {1.0, 1.2, 3.0, 3.2};
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) {
    double distance = 0;
    for (size_t j = 0; j < 6; ++j) distance += a[i][j] * std::pow(x[j] - p[i][j] * 1e-4, 2);
    sum -= alpha[i] * std::exp(-distance);
  }
  return sum;
}

/// The parameters: lr, layers, width, optimizer.
inline double mixed(const Assignment& x) {
  constexpr std::array<double, 3> penalty = {0.5, 0.0, 1.0};
  return std::pow(std::log10(x[0]) + 3, 2) + 0.05 * std::pow(x[1] - 5, 2) + 0.2 * std::pow(std::log2(x[2]) - 7.5, 2) +
         penalty.at(static_cast<size_t>(x[3]));
}

inline Parameter real(std::string name, double low, double high, bool log = false) {
  return {.name = std::move(name), .low = low, .high = high, .log = log};
}

inline Parameter integer(std::string name, double low, double high, bool log = false) {
  return {.name = std::move(name), .kind = Parameter::Kind::integer, .low = low, .high = high, .log = log, .step = 1};
}

inline Parameter choice(std::string name, std::vector<std::string> choices) {
  const auto last = static_cast<double>(choices.size()) - 1;
  return {.name = std::move(name), .kind = Parameter::Kind::choice, .high = last, .choices = std::move(choices)};
}

inline SearchSpace mixed_space() {
  return {{real("lr", 1e-5, 1, true), integer("layers", 1, 12), integer("width", 16, 1024, true),
           choice("optimizer", {"sgd", "adam", "lion"})}};
}

inline std::vector<TestFunction> test_functions() {
  SearchSpace cube;
  for (int i = 0; i < 6; ++i) cube.parameters.push_back(real("x" + std::to_string(i), 0, 1));
  return {{"branin", {{real("x", -5, 10), real("y", 0, 15)}}, branin},
          {"hartmann6", cube, hartmann6},
          {"mixed", mixed_space(), mixed}};
}

/// Minimizes `objective` in memory. Further metrics may be constrained.
template <class Metrics>
void run_trials(Study& study, int64_t trials, const Metrics& metrics) {
  for (int64_t i = 0; i < trials; ++i) {
    const auto trial = study.ask();
    if (!trial) return;
    study.tell(trial->number, {.metrics = metrics(trial->values)});
  }
}

}  // namespace bellows::tune
