#include "bellows/tune/parzen_estimator.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "bellows/core/seed.h"

namespace bellows::tune {

namespace {

constexpr size_t equal_weights = 25;  // Optuna's default_weights()
constexpr double prior_weight = 1;

/// The weights of the observations and of the prior. Their sum is 1.
std::vector<double> kernel_weights(size_t observations) {
  std::vector<double> weights(observations + 1, 1);
  if (observations >= equal_weights) {
    const size_t ramp = observations - equal_weights;
    const double first = 1.0 / static_cast<double>(observations);
    for (size_t i = 0; i < ramp; ++i)
      weights[i] = ramp > 1 ? first + (1 - first) * static_cast<double>(i) / static_cast<double>(ramp - 1) : first;
  }
  weights.back() = prior_weight;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// The larger distance of each observation to a neighbour, in the order of the observations.
std::vector<double> kernel_widths(const std::vector<double>& means, double low, double high) {
  const size_t n = means.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return means[a] < means[b]; });
  std::vector<double> widths(n);
  // As in Optuna, the distances to the ends of the range count only for a single observation.
  for (size_t i = 0; i < n; ++i) {
    const double here = means[order[i]];
    const bool single = n < 2;
    const double left = i > 0 ? here - means[order[i - 1]] : single ? here - low : 0;
    const double right = i + 1 < n ? means[order[i + 1]] - here : single ? high - here : 0;
    const double narrowest = (high - low) / std::min(100.0, 2.0 + static_cast<double>(n));
    widths[order[i]] = std::clamp(std::max(left, right), narrowest, high - low);
  }
  return widths;
}

/// The logarithm of the probability that a standard normal number is between `a` and `b`.
double log_normal_mass(double a, double b) {
  if (a > 0) return log_normal_mass(-b, -a);  // small numbers keep their precision only in the lower tail
  const double mass = 0.5 * (std::erfc(-b / std::numbers::sqrt2) - std::erfc(-a / std::numbers::sqrt2));
  return std::log(mass);
}

double log_of_sum(const std::vector<double>& logs) {
  const double largest = *std::max_element(logs.begin(), logs.end());
  if (std::isinf(largest)) return largest;
  double sum = 0;
  for (const double log : logs) sum += std::exp(log - largest);
  return largest + std::log(sum);
}

double normal_number(RandomStream& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

/// The index of the part in which a uniform number falls. The sum of `parts` is 1.
size_t drawn_part(const std::vector<double>& parts, double uniform) {
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (uniform < parts[i]) return i;
    uniform -= parts[i];
  }
  return parts.size() - 1;
}

double truncated_normal_number(double mean, double width, const Parameter& parameter, RandomStream& random) {
  const double low = parameter.inner_low(), high = parameter.inner_high();
  if (width <= 0) return low;
  // The mean is within the range, and the width is at most the range. At least a third of the numbers are therefore
  // within the range.
  for (;;) {
    const double number = mean + width * normal_number(random);
    if (number >= low && number <= high) return number;
  }
}

/// The logarithm of a truncated normal distribution: of its probability if the parameter has steps, otherwise of its
/// density.
double log_truncated_normal(double value, double mean, double width, const Parameter& parameter) {
  const double low = parameter.inner_low(), high = parameter.inner_high(), half = parameter.step / 2;
  if (high <= low) return 0;
  const auto standard = [&](double x) { return (x - mean) / width; };
  const auto inner = [&](double x) { return standard(parameter.log ? std::log(x) : x); };
  const double z = inner(value - half);
  const double here = half > 0 ? log_normal_mass(z, inner(value + half))
                               : -z * z / 2 - std::log(width * std::sqrt(2 * std::numbers::pi));
  return here - log_normal_mass(standard(low), standard(high));
}

}  // namespace

ParzenEstimator::ParzenEstimator(const SearchSpace& space, const std::vector<Assignment>& observations)
    : space_(space), weights_(kernel_weights(observations.size())), marginals_(space.parameters.size()) {
  for (size_t i = 0; i < marginals_.size(); ++i) {
    const bool choice = space.parameters[i].kind == Parameter::Kind::choice;
    marginals_[i] = choice ? choice_marginals(i, observations) : number_marginals(i, observations);
  }
}

std::vector<ParzenEstimator::Marginal> ParzenEstimator::number_marginals(
    size_t parameter, const std::vector<Assignment>& observations) const {
  const Parameter& p = space_.parameters[parameter];
  const double low = p.inner_low(), high = p.inner_high();
  std::vector<double> means(observations.size());
  std::transform(observations.begin(), observations.end(), means.begin(),
                 [&](const Assignment& values) { return p.log ? std::log(values[parameter]) : values[parameter]; });
  const std::vector<double> widths = kernel_widths(means, low, high);
  std::vector<Marginal> marginals(weights_.size());
  for (size_t i = 0; i < means.size(); ++i) marginals[i] = {.mean = means[i], .width = widths[i]};
  marginals.back() = {.mean = (low + high) / 2, .width = high - low};
  return marginals;
}

std::vector<ParzenEstimator::Marginal> ParzenEstimator::choice_marginals(
    size_t parameter, const std::vector<Assignment>& observations) const {
  const size_t choices = space_.parameters[parameter].choices.size();
  const double spread = prior_weight / static_cast<double>(weights_.size());
  const double sum = 1 + static_cast<double>(choices) * spread;
  std::vector<Marginal> marginals(weights_.size());
  for (size_t i = 0; i < observations.size(); ++i) {
    marginals[i].probabilities.assign(choices, spread / sum);
    marginals[i].probabilities[static_cast<size_t>(observations[i][parameter])] += 1 / sum;
  }
  marginals.back().probabilities.assign(choices, 1 / static_cast<double>(choices));
  return marginals;
}

Assignment ParzenEstimator::sample(RandomStream& random) const {
  const size_t kernel = drawn_part(weights_, random.uniform());
  Assignment values(space_.parameters.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = space_.parameters[i];
    const Marginal& marginal = marginals_[i][kernel];
    values[i] = parameter.kind == Parameter::Kind::choice
                    ? static_cast<double>(drawn_part(marginal.probabilities, random.uniform()))
                    : parameter.from_inner(truncated_normal_number(marginal.mean, marginal.width, parameter, random));
  }
  return values;
}

double ParzenEstimator::log_density(const Assignment& values) const {
  std::vector<double> logs(weights_.size());
  for (size_t kernel = 0; kernel < logs.size(); ++kernel) {
    logs[kernel] = std::log(weights_[kernel]);
    for (size_t i = 0; i < values.size(); ++i) {
      const Parameter& parameter = space_.parameters[i];
      const Marginal& marginal = marginals_[i][kernel];
      logs[kernel] += parameter.kind == Parameter::Kind::choice
                          ? std::log(marginal.probabilities.at(static_cast<size_t>(values[i])))
                          : log_truncated_normal(values[i], marginal.mean, marginal.width, parameter);
    }
  }
  return log_of_sum(logs);
}

}  // namespace bellows::tune
