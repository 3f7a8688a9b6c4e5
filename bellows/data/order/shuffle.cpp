#include "bellows/data/order/shuffle.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace bellows::data {

namespace {

constexpr uint64_t kOrderStream = 0x6f72646572;  // separates an order's seed from the samples' seeds

}  // namespace

uint64_t epoch_seed(uint64_t seed, int64_t epoch) {
  return mix_seed(seed, static_cast<uint64_t>(epoch), kOrderStream);
}

uint64_t order_seed(uint64_t seed) {
  return mix_seed(seed, kOrderStream);
}

Positions permutation(int64_t size, uint64_t seed) {
  Positions positions(size, size);
  for (int64_t i = 0; i < size; ++i) positions.set(i, i);
  RandomStream random(seed);
  for (int64_t i = size; i > 1; --i)
    positions.swap(i - 1, static_cast<int64_t>(random.below(static_cast<uint64_t>(i))));
  return positions;
}

Passes::Passes(int64_t size, uint64_t seed, int64_t which, int64_t taken)
    : size_(size),
      pass_(taken / size),
      at_(taken % size),
      seed_(mix_seed(seed, static_cast<uint64_t>(which))),
      order_(permutation(size, mix_seed(seed_, static_cast<uint64_t>(pass_)))) {}

int64_t Passes::next() {
  if (at_ == size_) {
    order_ = Positions::ascending(0);  // free its memory first
    order_ = permutation(size_, mix_seed(seed_, static_cast<uint64_t>(++pass_)));
    at_ = 0;
  }
  return order_[at_++];
}

std::vector<uint64_t> integer_weights(const char* who, const std::vector<double>& weights, double sum) {
  TORCH_CHECK_VALUE(!weights.empty(), who, ": expected at least one weight, got none.");
  double largest = 0, total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK_VALUE(std::isfinite(weights[i]) && weights[i] >= 0, who,
                      ": expected weights that are finite and not negative, got ", weights[i], " at ", i, ".");
    largest = std::max(largest, weights[i]);
  }
  TORCH_CHECK_VALUE(largest > 0, who, ": all ", weights.size(), " weights are 0. At least one weight must be above 0.");
  for (const double weight : weights) total += weight / largest;  // at most the number of weights: no overflow
  const double scale = sum / total;
  std::vector<uint64_t> integers;
  integers.reserve(weights.size());
  for (const double weight : weights)
    integers.push_back(weight > 0 ? std::max<uint64_t>(1, static_cast<uint64_t>(weight / largest * scale)) : 0);
  return integers;
}

}  // namespace bellows::data
