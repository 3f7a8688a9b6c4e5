#pragma once

#include <limits>
#include <string>
#include <vector>

namespace bellows {

/// Throws: c10::ValueError – no values. `quantile` interpolates linearly, q in [0, 1].
double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);

/// A ratio with its uncertainty. NaN: not measured.
struct RatioInterval {
  double ratio = std::numeric_limits<double>::quiet_NaN();
  double low = std::numeric_limits<double>::quiet_NaN();  ///< ends of the two-sided 90 % interval
  double high = std::numeric_limits<double>::quiet_NaN();
  /// True when 1 lies outside: the difference is real at this level.
  bool excludes_one() const { return low > 1 || high < 1; }
};

/// The ratio a/b of paired measurements taken in turn (A B A B …), by ranks, so that a window that the machine spoiled
/// counts for little: the Hodges–Lehmann estimate of the logarithms' centre with the interval of Wilcoxon's signed-rank
/// test. From ten pairs on, one spoiled window cannot move the interval's ends far; below five, ranks cannot be that
/// sure: the mean of the logarithms with Student's t.
/// Shapes:   a, b – the same length, at least 2; positive values
/// Throws:   c10::ValueError – otherwise
/// Ref:      Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3
RatioInterval paired_ratio(const std::vector<double>& a, const std::vector<double>& b);

/// A difference with its uncertainty, in the unit of the measurements.
struct DifferenceInterval {
  double difference = 0;
  double low = 0;  ///< ends of the two-sided 90 % interval
  double high = 0;
};

/// The difference a − b of paired measurements taken in turn, by ranks as paired_ratio().
/// Shapes:   a, b – the same length, at least 5
/// Throws:   c10::ValueError – otherwise
DifferenceInterval paired_difference(const std::vector<double>& a, const std::vector<double>& b);

/// "12.3 MiB", "812 B".
/// Units:    bytes, powers of 1024.
std::string format_bytes(double bytes);
/// "1.25 s", "13 ms", "2 min 05 s".
std::string format_seconds(double seconds);

}  // namespace bellows
