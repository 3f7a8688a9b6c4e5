#pragma once

#include <limits>
#include <string>
#include <vector>

namespace bellows {

/// `quantile` interpolates linearly; q is in [0, 1]. Both throw c10::ValueError if `values` is empty.
double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);

/// A ratio with its confidence interval. NaN if it was not measured.
struct RatioInterval {
  double ratio = std::numeric_limits<double>::quiet_NaN();
  double low = std::numeric_limits<double>::quiet_NaN();  ///< limits of the two-sided 90 % interval
  double high = std::numeric_limits<double>::quiet_NaN();
  /// True if 1 lies outside the interval: the difference is significant at this level.
  bool excludes_one() const { return low > 1 || high < 1; }
};

/// The ratio a/b of interleaved paired measurements (A B A B …). It uses ranks, so a single disturbed window has little
/// influence: the Hodges–Lehmann estimate of the logarithms' center, with the interval of Wilcoxon's signed-rank test.
/// With at least ten pairs, one disturbed window cannot move the interval far. With fewer than five pairs, it uses the
/// mean of the logarithms with Student's t interval instead.
/// Shapes:   a, b – the same length, at least 2; positive values
/// Throws:   c10::ValueError if the lengths or values are invalid
/// Ref:      Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3
RatioInterval paired_ratio(const std::vector<double>& a, const std::vector<double>& b);

/// A difference with its confidence interval, in the unit of the measurements.
struct DifferenceInterval {
  double difference = 0;
  double low = 0;  ///< limits of the two-sided 90 % interval
  double high = 0;
};

/// The difference a − b of interleaved paired measurements, estimated from ranks like paired_ratio().
/// Shapes:   a, b – the same length, at least 5
/// Throws:   c10::ValueError if the lengths are invalid
DifferenceInterval paired_difference(const std::vector<double>& a, const std::vector<double>& b);

/// Formats bytes in powers of 1024: "12.3 MiB", "812 B".
std::string format_bytes(double bytes);
/// Formats seconds: "1.25 s", "13 ms", "2 min 05 s".
std::string format_seconds(double seconds);

}  // namespace bellows
