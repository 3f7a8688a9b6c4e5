#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace bellows::quant {

/// A histogram of values in [−range(), range()] whose range grows with the data. The range is a power of two. When it
/// doubles, pairs of bins are merged, so the counts do not depend on the order in which the values arrive.
/// Threads: not thread-safe
class Histogram {
 public:
  static constexpr int64_t bins = 8192;

  /// Params: x – fp32, finite
  void add(const at::Tensor& x);

  double range() const { return range_; }
  double width() const { return 2 * range_ / bins; }
  double center(int64_t bin) const { return -range_ + (static_cast<double>(bin) + 0.5) * width(); }
  const std::vector<double>& counts() const { return counts_; }
  /// Returns the smallest and largest value.
  double lowest() const { return lowest_; }
  double highest() const { return highest_; }

  /// Returns the range that contains this share of all values, with equal shares below and above it.
  std::pair<double, double> percentile_range(double share) const;

 private:
  void grow(double largest);

  std::vector<double> counts_ = std::vector<double>(bins);
  double range_ = 0, lowest_ = 0, highest_ = 0;
};

}  // namespace bellows::quant
