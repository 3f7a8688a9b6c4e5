#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "bellows/data/order/order_impl.h"

namespace bellows::data {

std::vector<uint64_t> integer_weights(const char* who, const std::vector<double>& weights, double sum) {
  TORCH_CHECK_VALUE(!weights.empty(), who, ": expected at least one weight, got none.");
  double largest = 0, total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK_VALUE(std::isfinite(weights[i]) && weights[i] >= 0, who,
                      ": expected weights that are finite and not negative, got ", weights[i], " at ", i, ".");
    largest = std::max(largest, weights[i]);
  }
  TORCH_CHECK_VALUE(largest > 0, who, ": all ", weights.size(), " weights are 0. Give at least one a larger weight.");
  for (const double weight : weights) total += weight / largest;  // at most their number: no overflow
  const double scale = sum / total;
  std::vector<uint64_t> integers;
  integers.reserve(weights.size());
  for (const double weight : weights)
    integers.push_back(weight > 0 ? std::max<uint64_t>(1, static_cast<uint64_t>(weight / largest * scale)) : 0);
  return integers;
}

namespace {

/// Weights of which single ones can be taken out (a Fenwick tree).
class WeightTree {
 public:
  explicit WeightTree(const std::vector<uint64_t>& cumulative) : sums_(cumulative.size() + 1) {
    for (size_t i = 1; i < sums_.size(); ++i)
      sums_[i] = cumulative[i - 1] - (i == lowest_bit(i) ? 0 : cumulative[i - lowest_bit(i) - 1]);
  }

  /// The position whose stretch of the cumulative sum holds `value`.
  size_t find(uint64_t value) const {
    size_t at = 0;
    for (size_t step = std::bit_floor(sums_.size()); step > 0; step /= 2) {
      if (at + step >= sums_.size() || sums_[at + step] > value) continue;
      at += step;
      value -= sums_[at];
    }
    return at;
  }

  void remove(size_t position, uint64_t weight) {
    for (size_t i = position + 1; i < sums_.size(); i += lowest_bit(i)) sums_[i] -= weight;
  }

 private:
  static size_t lowest_bit(size_t i) { return i & (~i + 1); }
  std::vector<uint64_t> sums_;  // of the lowest_bit(i) weights up to the i-th, counted from 1
};

class WeightedOrder final : public Order {
 public:
  WeightedOrder(const std::vector<double>& weights, const Weighted& options)
      : options_(options), cumulative_(integer_weights("weighted", weights, 0x1p61)) {
    const auto size = static_cast<int64_t>(weights.size());
    const int64_t drawable = size - std::count(cumulative_.begin(), cumulative_.end(), uint64_t{0});
    for (size_t i = 1; i < cumulative_.size(); ++i) cumulative_[i] += cumulative_[i - 1];
    TORCH_CHECK_VALUE(options.samples >= 0 && options.samples <= kMaxDrawnEpoch, "weighted: expected 0 to ",
                      kMaxDrawnEpoch, " samples an epoch, got ", options.samples, ".");
    TORCH_CHECK_VALUE(options.replacement || options.samples <= drawable, "weighted: ", options.samples,
                      " samples an epoch were asked for without replacement, but only ", drawable,
                      " have a weight above 0. Draw fewer, or with replacement.");
    if (options.samples == 0) options_.samples = options.replacement ? size : drawable;
  }

  int64_t length(const Source& source, int64_t) const override {
    check_size("weighted", "weights", static_cast<int64_t>(cumulative_.size()), source);
    return options_.samples;
  }
  bool repeats() const override { return options_.replacement; }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    Positions drawn(length(source, epoch), source.size());
    RandomStream random(epoch_seed(seed, epoch));
    if (options_.replacement) {
      draw(drawn, random);
    } else {
      draw_once(drawn, random);
    }
    return drawn;
  }

 private:
  void draw(Positions& drawn, RandomStream& random) const {
    for (int64_t i = 0; i < drawn.size(); ++i) {
      const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), random.below(cumulative_.back()));
      drawn.set(i, found - cumulative_.begin());
    }
  }

  void draw_once(Positions& drawn, RandomStream& random) const {
    WeightTree tree(cumulative_);
    uint64_t total = cumulative_.back();
    for (int64_t i = 0; i < drawn.size(); ++i) {
      const size_t found = tree.find(random.below(total));
      const uint64_t weight = cumulative_[found] - (found > 0 ? cumulative_[found - 1] : 0);
      tree.remove(found, weight);
      total -= weight;
      drawn.set(i, static_cast<int64_t>(found));
    }
  }

  Weighted options_;
  std::vector<uint64_t> cumulative_;
};

}  // namespace

OrderPtr weighted(const std::vector<double>& weights, Weighted options) {
  return std::make_shared<WeightedOrder>(weights, options);
}

}  // namespace bellows::data
