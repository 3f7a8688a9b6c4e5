#include "bellows/quant/histogram/histogram.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

namespace bellows::quant {

namespace {

/// The position at which the sum of the counts reaches `wanted`, in bins. Values are spread evenly over their bin.
template <class Iterator>
double position_of(Iterator bin, Iterator end, double wanted) {
  double position = 0, sum = 0;
  for (; bin != end; ++bin, ++position) {
    if (*bin > 0 && sum + *bin >= wanted) return position + (wanted - sum) / *bin;
    sum += *bin;
  }
  return position;
}

}  // namespace

void Histogram::add(const at::Tensor& x) {
  if (x.numel() == 0) return;
  const at::Tensor flat = x.detach().to(at::kFloat).flatten().contiguous();
  const auto* const values = flat.const_data_ptr<float>();
  const auto [low, high] = std::minmax_element(values, values + flat.numel());
  const bool is_first = range_ == 0;
  lowest_ = is_first ? *low : std::min<double>(lowest_, *low);
  highest_ = is_first ? *high : std::max<double>(highest_, *high);
  grow(std::max(std::abs(lowest_), std::abs(highest_)));
  const double per_bin = 1 / width();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const auto bin = static_cast<int64_t>((values[i] + range_) * per_bin);
    ++counts_[static_cast<size_t>(std::clamp<int64_t>(bin, 0, bins - 1))];
  }
}

void Histogram::grow(double largest) {
  constexpr double smallest_range = 0x1p-100;
  if (range_ == 0) range_ = largest > smallest_range ? std::exp2(std::ceil(std::log2(largest))) : smallest_range;
  while (range_ < largest) {
    std::vector<double> merged(bins);
    for (int64_t bin = 0; bin < bins; ++bin)
      merged[static_cast<size_t>(bins / 4 + bin / 2)] += counts_[static_cast<size_t>(bin)];
    counts_ = std::move(merged);
    range_ *= 2;
  }
}

std::pair<double, double> Histogram::percentile_range(double share) const {
  double all = 0;
  for (const double count : counts_) all += count;
  const double outside = all * (1 - share) / 2;
  const double low = -range_ + width() * position_of(counts_.begin(), counts_.end(), outside);
  const double high = range_ - width() * position_of(counts_.rbegin(), counts_.rend(), outside);
  return {std::clamp(low, lowest_, highest_), std::clamp(high, lowest_, highest_)};
}

}  // namespace bellows::quant
