#pragma once

#include <string>
#include <vector>

namespace bellows {

/// Throws: c10::ValueError – no values. `quantile` interpolates linearly, q in [0, 1].
double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);

/// A ratio with its uncertainty.
struct RatioInterval {
  double ratio = 1;  ///< geometric mean of the pairs' ratios
  double low = 1;    ///< ends of the two-sided 90 % interval
  double high = 1;
  /// True when 1 lies outside: the difference is real at this level.
  bool excludes_one() const { return low > 1 || high < 1; }
};

/// The ratio a/b of paired measurements taken in turn (A B A B …), from Student's t over the logarithms of the pairs'
/// ratios.
/// Shapes:   a, b – the same length, at least 2; positive values
/// Throws:   c10::ValueError – otherwise
RatioInterval paired_ratio(const std::vector<double>& a, const std::vector<double>& b);

/// "12.3 MiB", "812 B".
/// Units:    bytes, powers of 1024.
std::string format_bytes(double bytes);
/// "1.25 s", "13 ms", "2 min 05 s".
std::string format_seconds(double seconds);

}  // namespace bellows
