#include "bellows/quant/histogram/histogram_range.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace bellows::quant {

namespace {

/// Sum of the squared errors if the integers cover [low, high].
double squared_error(const Histogram& values, double low, double high, const Scheme& scheme) {
  if (scheme.symmetric) low = -(high = std::max(-low, high));
  const auto steps = static_cast<double>(scheme.largest() - scheme.smallest());
  const double scale = std::max((high - low) / steps, 1e-30);
  const double zero = std::round(-low / scale);
  double sum = 0;
  for (int64_t bin = 0; bin < Histogram::bins; ++bin) {
    const double count = values.counts()[static_cast<size_t>(bin)];
    if (count == 0) continue;
    const double x = values.center(bin);
    const double q = std::clamp(std::round(x / scale) + zero, 0.0, steps);
    const double error = x - (q - zero) * scale;
    sum += count * error * error;
  }
  return sum;
}

/// The divergence of Q from P. P holds the counts of a range. Q has the same mass in `levels` equal steps, spread evenly
/// over the bins of P that are not empty.
double divergence(const std::vector<double>& p, const std::vector<double>& inside, size_t levels) {
  double all_p = 0, all_q = 0, sum = 0;
  std::vector<double> q(p.size());
  for (size_t level = 0; level < levels; ++level) {
    const size_t first = level * p.size() / levels, last = (level + 1) * p.size() / levels;
    double mass = 0;
    size_t used = 0;
    for (size_t i = first; i < last; ++i) {
      mass += inside[i];
      used += p[i] > 0;
    }
    for (size_t i = first; i < last; ++i) q[i] = p[i] > 0 ? mass / static_cast<double>(used) : 0;
  }
  for (size_t i = 0; i < p.size(); ++i) {
    all_p += p[i];
    all_q += q[i];
  }
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    if (q[i] == 0) return std::numeric_limits<double>::infinity();
    sum += p[i] / all_p * std::log(p[i] / all_p * all_q / q[i]);
  }
  return sum;
}

/// Counts of absolute values.
std::vector<double> magnitudes(const Histogram& values) {
  constexpr size_t half = Histogram::bins / 2;
  std::vector<double> counts(half);
  for (size_t i = 0; i < half; ++i) counts[i] = values.counts()[half + i] + values.counts()[half - 1 - i];
  return counts;
}

}  // namespace

std::pair<double, double> mse_range(const Histogram& values, const Scheme& scheme) {
  constexpr int shares = 128;
  double low = std::min(values.lowest(), 0.0), high = std::max(values.highest(), 0.0);
  const double lowest = low, highest = high;
  double best = squared_error(values, low, high, scheme);
  const auto try_range = [&](double new_low, double new_high) {
    const double error = squared_error(values, new_low, new_high, scheme);
    if (error >= best) return;
    best = error;
    low = new_low;
    high = new_high;
  };
  for (int i = 1; i < shares; ++i) {
    const double share = 1 - static_cast<double>(i) / shares;
    try_range(share * lowest, share * highest);
  }
  if (scheme.symmetric) return {low, high};
  for (int i = 0; i < shares; ++i) try_range((1 - static_cast<double>(i) / shares) * lowest, high);
  for (int i = 0; i < shares; ++i) try_range(low, (1 - static_cast<double>(i) / shares) * highest);
  return {low, high};
}

std::pair<double, double> entropy_range(const Histogram& values, const Scheme& scheme) {
  const std::vector<double> counts = magnitudes(values);
  // Integers of values with both signs cover the magnitudes with half of their steps.
  const auto levels = static_cast<size_t>(scheme.largest() - scheme.smallest() + 1) / (values.lowest() < 0 ? 2 : 1);
  const double largest = std::max(-values.lowest(), values.highest());
  const auto used = std::min(counts.size(), static_cast<size_t>(largest / values.width()) + 1);
  if (levels < 1 || used <= levels) return {values.lowest(), values.highest()};
  double best = std::numeric_limits<double>::infinity(), threshold = largest;
  const size_t step = std::max<size_t>(1, (used - levels) / 512);
  for (size_t end = used; end > levels; end -= std::min(step, end - levels)) {
    const std::vector<double> inside(counts.begin(), counts.begin() + static_cast<int64_t>(end));
    std::vector<double> p = inside;
    for (size_t i = end; i < counts.size(); ++i) p.back() += counts[i];
    const double found = divergence(p, inside, levels);
    if (found >= best) continue;
    best = found;
    threshold = std::min(largest, static_cast<double>(end) * values.width());
  }
  return {std::max(values.lowest(), -threshold), std::min(values.highest(), threshold)};
}

}  // namespace bellows::quant
