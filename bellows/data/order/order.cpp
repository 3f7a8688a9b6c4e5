#include "bellows/data/order/order.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/data/order/order_impl.h"

namespace bellows::data {

Positions Positions::ascending(int64_t size) {
  Positions positions;
  positions.size_ = size;
  return positions;
}

Positions::Positions(int64_t size, int64_t bound) : size_(size) {
  if (bound <= int64_t{1} << 32) {
    narrow_.resize(static_cast<size_t>(size));
  } else {
    wide_.resize(static_cast<size_t>(size));
  }
}

void Positions::set(int64_t i, int64_t position) {
  const auto at = static_cast<size_t>(i);
  if (!narrow_.empty()) {
    narrow_[at] = static_cast<uint32_t>(position);
  } else {
    wide_[at] = position;
  }
}

void Positions::swap(int64_t i, int64_t j) {
  const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
  if (!narrow_.empty()) {
    std::swap(narrow_[a], narrow_[b]);
  } else {
    std::swap(wide_[a], wide_[b]);
  }
}

void Positions::truncate(int64_t size) {
  size_ = size;
  if (!narrow_.empty()) narrow_.resize(static_cast<size_t>(size));
  if (!wide_.empty()) wide_.resize(static_cast<size_t>(size));
}

int64_t Order::length(const Source& source, int64_t) const {
  return source.size();
}

namespace {

constexpr uint64_t kOrderStream = 0x6f72646572;  // keeps an order's seed apart from the samples'

}  // namespace

uint64_t epoch_seed(uint64_t seed, int64_t epoch) {
  return mix_seed(seed, static_cast<uint64_t>(epoch), kOrderStream);
}

uint64_t order_seed(uint64_t seed) {
  return mix_seed(seed, kOrderStream);
}

void check_size(const char* who, const char* what, int64_t expected, const Source& source) {
  TORCH_CHECK_VALUE(expected == source.size(), who, ": this order was made of ", expected, " ", what,
                    ", the source has ", source.size(), " samples (", source.describe(),
                    "). Give one for each sample.");
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
    order_ = Positions::ascending(0);  // its memory first
    order_ = permutation(size_, mix_seed(seed_, static_cast<uint64_t>(++pass_)));
    at_ = 0;
  }
  return order_[at_++];
}

namespace {

/// The samples of a source, its blocks in a random sequence.
struct BlockSequence {
  Positions positions;
  std::vector<int64_t> ends;  ///< of each block, in the sequence
};

BlockSequence random_blocks(const Source& source, uint64_t seed) {
  std::vector<int64_t> starts = source.block_starts();
  if (starts.empty() || source.size() == 0) starts = {0};
  const bool rising = std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) == starts.end();
  TORCH_CHECK_VALUE(source.size() == 0 || (starts.front() == 0 && rising && starts.back() < source.size()),
                    "Order: the source's blocks do not begin at 0 or do not rise up to its size, ", source.size(), " (",
                    source.describe(), "). Mend its block_starts().");
  BlockSequence sequence{Positions(source.size(), source.size()), {}};
  const Positions blocks = permutation(static_cast<int64_t>(starts.size()), seed);
  starts.push_back(source.size());
  sequence.ends.reserve(static_cast<size_t>(blocks.size()));
  int64_t filled = 0;
  for (int64_t i = 0; i < blocks.size(); ++i) {
    const auto block = static_cast<size_t>(blocks[i]);
    for (int64_t position = starts[block]; position < starts[block + 1]; ++position)
      sequence.positions.set(filled++, position);
    sequence.ends.push_back(filled);
  }
  return sequence;
}

class SequentialOrder final : public Order {
 public:
  Positions positions(const Source& source, uint64_t, int64_t) const override {
    return Positions::ascending(source.size());
  }
};

class ShuffledOrder final : public Order {
 public:
  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    return permutation(source.size(), epoch_seed(seed, epoch));
  }
};

class BufferedOrder final : public Order {
 public:
  explicit BufferedOrder(int64_t buffer) : buffer_(buffer) {
    TORCH_CHECK_VALUE(buffer > 0, "buffered: expected a buffer of at least 1 sample, got ", buffer, ".");
  }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    const uint64_t base = epoch_seed(seed, epoch);
    Positions positions = random_blocks(source, base).positions;
    const int64_t end = positions.size(), buffer = std::min(buffer_, end);
    RandomStream random(mix_seed(base, 1));
    shuffle_within(positions, 0, end, random, [&](int64_t i) { return std::min(i + buffer, end); });
    return positions;
  }

 private:
  int64_t buffer_;
};

class PageShuffledOrder final : public Order {
 public:
  explicit PageShuffledOrder(const PageShuffle& options) : options_(options) {
    TORCH_CHECK_VALUE(options.window > 0 && options.lanes > 0 && options.run > 0,
                      "page_shuffled: expected window, lanes and run of at least 1, got ", options.window, ", ",
                      options.lanes, " and ", options.run, ".");
  }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    const uint64_t base = epoch_seed(seed, epoch);
    BlockSequence sequence = random_blocks(source, base);
    const auto blocks = static_cast<int64_t>(sequence.ends.size());
    if (blocks < 2) return permutation(source.size(), base);
    int64_t lanes = std::min(options_.lanes, blocks);
    while (options_.lanes % lanes > 0) --lanes;  // so that the same world sizes divide it
    RandomStream random(mix_seed(base, 1));
    std::vector<int64_t> starts;
    for (int64_t lane = 0; lane <= lanes; ++lane) starts.push_back(cut(source.size(), lane, lanes));
    for (size_t lane = 1; lane < starts.size(); ++lane)
      shuffle_windows(sequence, starts[lane - 1], starts[lane], random);
    return weave(sequence.positions, std::move(starts));
  }

 private:
  static int64_t cut(int64_t size, int64_t part, int64_t parts) {
    return size / parts * part + size % parts * part / parts;
  }

  void shuffle_windows(BlockSequence& sequence, int64_t begin, int64_t lane_end, RandomStream& random) const {
    const std::vector<int64_t>& ends = sequence.ends;
    while (begin < lane_end) {
      const auto left = ends.end() - std::upper_bound(ends.begin(), ends.end(), begin);
      const int64_t last = std::min<int64_t>(options_.window, left);
      const int64_t end = std::min(ends[ends.size() - static_cast<size_t>(left - last) - 1], lane_end);
      shuffle_within(sequence.positions, begin, end, random, [end](int64_t) { return end; });
      begin = end;
    }
  }

  /// A run from each lane in turn, until all are empty.
  Positions weave(const Positions& positions, std::vector<int64_t> starts) const {
    Positions woven(positions.size(), positions.size());
    const std::vector<int64_t> ends(starts.begin() + 1, starts.end());
    for (int64_t filled = 0; filled < positions.size();) {
      for (size_t lane = 0; lane < ends.size(); ++lane) {
        const int64_t run = std::min(options_.run, ends[lane] - starts[lane]);
        for (int64_t i = 0; i < run; ++i) woven.set(filled++, positions[starts[lane]++]);
      }
    }
    return woven;
  }

  PageShuffle options_;
};

}  // namespace

OrderPtr sequential() {
  return std::make_shared<SequentialOrder>();
}

OrderPtr shuffled() {
  return std::make_shared<ShuffledOrder>();
}

OrderPtr buffered(int64_t buffer) {
  return std::make_shared<BufferedOrder>(buffer);
}

OrderPtr page_shuffled(PageShuffle options) {
  return std::make_shared<PageShuffledOrder>(options);
}

}  // namespace bellows::data
