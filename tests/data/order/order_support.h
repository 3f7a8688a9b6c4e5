#pragma once

#include <map>

#include "bellows/data/order/buckets.h"
#include "bellows/data/order/mix.h"
#include "tests/data/support.h"

namespace bellows::data::testing {

/// Numbers in blocks.
class BlockSource final : public Source {
 public:
  using Source::read;
  BlockSource(int64_t size, std::vector<int64_t> starts) : numbers_(size), starts_(std::move(starts)) {}
  int64_t size() const override { return numbers_.size(); }
  void read(int64_t index, Sample& sample) const override { numbers_.read(index, sample); }
  std::string describe() const override { return "blocks of numbers"; }
  std::vector<int64_t> block_starts() const override { return starts_; }
  /// The block that holds a position.
  int64_t block(int64_t position) const {
    return std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1;
  }

 private:
  CountingSource numbers_;
  std::vector<int64_t> starts_;
};

/// Blocks of 20 to 59 numbers.
inline std::shared_ptr<const BlockSource> uneven_blocks(int64_t size, uint64_t seed = 1) {
  std::vector<int64_t> starts;
  RandomStream random(seed);
  for (int64_t at = 0; at < size; at += 20 + static_cast<int64_t>(random.below(40))) starts.push_back(at);
  return std::make_shared<BlockSource>(size, starts);
}

inline std::vector<int64_t> values(const Positions& positions) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < positions.size(); ++i) result.push_back(positions[i]);
  return result;
}

inline std::vector<int64_t> sorted(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

inline std::vector<int64_t> up_to(int64_t n) {
  return values(Positions::ascending(n));
}

/// Some number for each of n samples, below `bound`.
inline std::vector<int64_t> some_numbers(int64_t n, uint64_t bound, uint64_t seed = 7) {
  RandomStream random(seed);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(static_cast<int64_t>(random.below(bound)));
  return numbers;
}

/// An order of each kind for a source of n samples, by name.
inline std::map<std::string, OrderPtr> all_orders(int64_t n) {
  const std::vector<int64_t> lengths = some_numbers(n, 100);
  const std::vector<double> weights(lengths.begin(), lengths.end()), ones(static_cast<size_t>(n), 1.0);
  const int64_t part = std::max<int64_t>(n / 3, 1);
  std::vector<int64_t> sizes{part};
  if (n > part) sizes.push_back(n - part);
  return {{"sequential", sequential()},
          {"shuffled", shuffled()},
          {"buffered", buffered(17)},
          {"page_shuffled", page_shuffled({.window = 2, .lanes = 4, .run = 3})},
          {"weighted", weighted(ones)},
          {"weighted_once", weighted(ones, {.replacement = false})},
          {"class_balanced", class_balanced(some_numbers(n, 5))},
          {"curriculum", curriculum(weights, growing_pacing(0.3, 4))},
          {"mixed_first", mixed(sizes, std::vector<double>(sizes.size(), 2.5))},
          {"mixed_last", mixed(sizes, std::vector<double>(sizes.size(), 1), MixEnd::last)},
          {"bucketed", bucketed(lengths, {.together = 8, .window = 32})}};
}

}  // namespace bellows::data::testing
