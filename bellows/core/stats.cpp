#include "bellows/core/stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "bellows/core/error.h"

namespace bellows {

namespace {

/// Student's t at 0.95 for 1 to 30 degrees of freedom: the half width of a two-sided 90 % interval.
double student_t95(size_t degrees) {
  static constexpr std::array<double, 30> table = {
      6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
      1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697};
  return degrees <= table.size() ? table[degrees - 1] : 1.645;
}

template <class... Args>
std::string format_number(const char* format, Args... args) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, args...);
  return buffer.data();
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
                    "paired_ratio: expected two series of one length, at least 2, got ", a.size(), " and ", b.size(),
                    ".");
  const auto n = static_cast<double>(a.size());
  std::vector<double> logs(a.size());
  double mean = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    TORCH_CHECK_VALUE(a[i] > 0 && b[i] > 0, "paired_ratio: expected positive values, got ", a[i], " and ", b[i], " at ",
                      i, ".");
    logs[i] = std::log(a[i] / b[i]);
    mean += logs[i] / n;
  }
  double square = 0;
  for (const double value : logs) square += (value - mean) * (value - mean);
  const double half = student_t95(a.size() - 1) * std::sqrt(square / (n - 1) / n);
  return {.ratio = std::exp(mean), .low = std::exp(mean - half), .high = std::exp(mean + half)};
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
