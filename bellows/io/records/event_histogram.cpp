#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "bellows/io/records/event.pb.h"
#include "bellows/io/records/histogram_impl.h"

namespace bellows::io {

namespace {

/// The ends of TensorBoard's buckets: …, -1.1e-12, -1e-12, 0, 1e-12, 1.1e-12, … up to 1e20.
const std::vector<double>& bucket_ends() {
  static const std::vector<double> ends = [] {
    std::vector<double> result{0};
    for (double end = 1e-12; end < 1e20; end *= 1.1) result.push_back(end);
    const std::vector<double> positive(result.begin() + 1, result.end());
    for (const double end : positive) result.insert(result.begin(), -end);
    return result;
  }();
  return ends;
}

/// The bucket [ends[i], ends[i + 1]) of a value; the last one holds its right end, too. Negative: none.
int64_t bucket_of(double value, const std::vector<double>& ends) {
  if (value == ends.back()) return static_cast<int64_t>(ends.size()) - 2;
  if (value < ends.front() || value > ends.back()) return -1;
  return std::upper_bound(ends.begin(), ends.end(), value) - ends.begin() - 1;
}

/// The buckets from the one before the first that holds something to the last that does, with their right ends.
void set_buckets(const std::vector<double>& counts, const std::vector<double>& ends, proto::Histogram& histogram) {
  const auto holds = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), holds) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), holds) - 1;
  for (auto i = first - 1; i <= last; ++i) {
    histogram.add_bucket(i < 0 ? 0 : counts[static_cast<size_t>(i)]);
    histogram.add_bucket_limit(ends[static_cast<size_t>(i + 1)]);
  }
}

}  // namespace

bool fill_histogram(const at::Tensor& values, proto::Histogram& histogram) {
  TORCH_CHECK_VALUE(values.defined() && !values.is_complex(), "histogram: expected a tensor of real numbers, got ",
                    values.defined() ? "a complex one." : "an undefined one.");
  const at::Tensor numbers = values.detach().to(c10::kCPU, c10::kDouble).contiguous();
  const std::vector<double>& ends = bucket_ends();
  std::vector<double> counts(ends.size() - 1);
  double minimum = std::numeric_limits<double>::infinity(), maximum = -minimum, sum = 0, squares = 0, count = 0;
  const double* data = numbers.const_data_ptr<double>();
  for (const double value : c10::ArrayRef<double>(data, static_cast<size_t>(numbers.numel()))) {
    if (!std::isfinite(value)) continue;
    minimum = std::min(minimum, value);
    maximum = std::max(maximum, value);
    sum += value;
    squares += value * value;
    ++count;
    if (const int64_t bucket = bucket_of(value, ends); bucket >= 0) ++counts[static_cast<size_t>(bucket)];
  }
  if (count == 0) return false;
  histogram.set_min(minimum);
  histogram.set_max(maximum);
  histogram.set_num(count);
  histogram.set_sum(sum);
  histogram.set_sum_squares(squares);
  if (std::any_of(counts.begin(), counts.end(), [](double c) { return c > 0; })) set_buckets(counts, ends, histogram);
  return true;
}

}  // namespace bellows::io
