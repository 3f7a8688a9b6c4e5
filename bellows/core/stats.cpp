#include "bellows/core/stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "bellows/core/error.h"

namespace bellows {

namespace {

constexpr double tail = 0.05;  // on each side of the interval

RatioInterval by_students_t(const std::vector<double>& logs) {
  static constexpr std::array quantile_95 = {6.314, 2.920, 2.353};  // for 1, 2 and 3 degrees of freedom
  const auto n = static_cast<double>(logs.size());
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / n;
  double square = 0;
  for (const double value : logs) square += (value - mean) * (value - mean);
  const double half = quantile_95.at(logs.size() - 2) * std::sqrt(square / (n - 1) / n);
  return {.ratio = std::exp(mean), .low = std::exp(mean - half), .high = std::exp(mean + half)};
}

/// The largest w with P(W <= w) <= tail, where W is the sum of a random subset of the ranks 1 … n (signed-rank
/// statistic).
size_t critical_rank_sum(size_t n) {
  std::vector<double> probability(n * (n + 1) / 2 + 1, 0.0);  // of each sum
  probability[0] = 1;
  for (size_t rank = 1; rank <= n; ++rank) {
    for (size_t sum = probability.size(); sum-- > 0;) {
      probability[sum] = (probability[sum] + (sum >= rank ? probability[sum - rank] : 0.0)) / 2;
    }
  }
  size_t w = 0;
  for (double below = probability[0]; below + probability[w + 1] <= tail; below += probability[w]) ++w;
  return w;
}

/// The center of `values` and the limits of its interval.
DifferenceInterval by_ranks(const std::vector<double>& values) {
  std::vector<double> averages;  // of every pair, and of each value with itself (Walsh averages)
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) averages.push_back((values[i] + values[j]) / 2);
  }
  std::sort(averages.begin(), averages.end());
  const size_t cut = critical_rank_sum(values.size());
  return {.difference = median(averages), .low = averages[cut], .high = averages[averages.size() - 1 - cut]};
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  TORCH_CHECK_VALUE(!values.empty(), "quantile: expected at least one value, got none.");
  TORCH_CHECK_VALUE(q >= 0 && q <= 1, "quantile: expected q in [0, 1], got ", q, ".");
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

RatioInterval paired_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  TORCH_CHECK_VALUE(a.size() == b.size() && a.size() >= 2,
                    "paired_ratio: expected two series of equal length, at least 2, got ", a.size(), " and ", b.size(),
                    ".");
  std::vector<double> logs(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    TORCH_CHECK_VALUE(a[i] > 0 && b[i] > 0, "paired_ratio: expected positive values, got ", a[i], " and ", b[i], " at ",
                      i, ".");
    logs[i] = std::log(a[i] / b[i]);
  }
  if (logs.size() < 5) return by_students_t(logs);
  const DifferenceInterval of_logs = by_ranks(logs);
  return {.ratio = std::exp(of_logs.difference), .low = std::exp(of_logs.low), .high = std::exp(of_logs.high)};
}

DifferenceInterval paired_difference(const std::vector<double>& a, const std::vector<double>& b) {
  TORCH_CHECK_VALUE(a.size() == b.size() && a.size() >= 5,
                    "paired_difference: expected two series of equal length, at least 5, got ", a.size(), " and ",
                    b.size(), ".");
  std::vector<double> differences(a.size());
  for (size_t i = 0; i < a.size(); ++i) differences[i] = a[i] - b[i];
  return by_ranks(differences);
}

std::string format_bytes(double bytes) {
  static constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return format_number(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return format_number("%.3g us", seconds * 1e6);
  if (seconds < 1) return format_number("%.3g ms", seconds * 1e3);
  if (seconds < 100) return format_number("%.3g s", seconds);
  const auto whole = static_cast<long>(seconds + 0.5);
  return format_number("%ld min %02ld s", whole / 60, whole % 60);
}

}  // namespace bellows
