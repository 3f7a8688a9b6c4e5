#pragma once

#include <array>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace bellows {

/// median() returns the median. quantile() returns the quantile at `q` in [0, 1], with linear interpolation.
/// Throws: c10::ValueError if `values` is empty or `q` is out of range
double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);

/// A ratio with its confidence interval. All values are NaN if the ratio was not measured.
struct RatioInterval {
  double ratio = std::numeric_limits<double>::quiet_NaN();
  double low = std::numeric_limits<double>::quiet_NaN();  ///< limits of the two-sided 90 % interval
  double high = std::numeric_limits<double>::quiet_NaN();
  /// Returns true if 1 is outside the interval. The difference from 1 is then statistically significant.
  bool excludes_one() const { return low > 1 || high < 1; }
};

/// Estimates the ratio a/b of interleaved paired measurements (A B A B …). The estimate is the Hodges–Lehmann estimate
/// of the center of the logarithms, with the interval of Wilcoxon's signed-rank test. Both methods use only the ranks
/// of the values. Therefore, with at least ten pairs, one outlier cannot shift the interval far. With fewer than five
/// pairs, the mean of the logarithms and Student's t interval are used instead.
/// Shapes:   a, b – equal length of at least 2; positive values
/// Throws:   c10::ValueError if the lengths or values are invalid
/// Ref:      Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3
RatioInterval paired_ratio(const std::vector<double>& a, const std::vector<double>& b);

/// A difference with its confidence interval, in the unit of the measurements.
struct DifferenceInterval {
  double difference = 0;
  double low = 0;  ///< limits of the two-sided 90 % interval
  double high = 0;
};

/// Estimates the difference a − b of interleaved paired measurements, with the same rank-based methods as
/// paired_ratio().
/// Shapes:   a, b – equal length of at least 5
/// Throws:   c10::ValueError if the lengths are invalid
DifferenceInterval paired_difference(const std::vector<double>& a, const std::vector<double>& b);

/// Formats values as printf() does. The result has at most 199 bytes.
template <class... Values>
std::string format_number(const char* format, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}
/// Formats bytes with binary units, such as "12.3 MiB" or "812 B".
std::string format_bytes(double bytes);
/// Formats seconds, such as "1.25 s", "13 ms" or "2 min 05 s".
std::string format_seconds(double seconds);

}  // namespace bellows
