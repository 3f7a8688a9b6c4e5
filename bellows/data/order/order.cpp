#include "bellows/data/order/order.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "bellows/data/order/shuffle.h"

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

void Order::check_size(const char* who, const char* what, int64_t expected, const Source& source) {
  TORCH_CHECK_VALUE(expected == source.size(), who, ": this order was created for ", expected, " ", what,
                    ", but the source has ", source.size(), " samples (", source.describe(),
                    "). Pass one value per sample.");
}

namespace {

/// The samples of a source with its blocks in random sequence.
struct BlockSequence {
  Positions positions;
  std::vector<int64_t> ends;  ///< of each block, in the sequence
};

BlockSequence random_blocks(const Source& source, uint64_t seed) {
  std::vector<int64_t> starts = source.block_starts();
  if (starts.empty() || source.size() == 0) starts = {0};
  const bool rising = std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) == starts.end();
  TORCH_CHECK_VALUE(source.size() == 0 || (starts.front() == 0 && rising && starts.back() < source.size()),
                    "Order: the block starts of the source must begin at 0 and increase up to its size, ",
                    source.size(), " (", source.describe(), "). Fix block_starts() of the source.");
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

  /// Takes a run from each lane in turn until all lanes are empty.
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

/// Weights that can be removed individually (a Fenwick tree).
class WeightTree {
 public:
  explicit WeightTree(const std::vector<uint64_t>& cumulative) : sums_(cumulative.size() + 1) {
    for (size_t i = 1; i < sums_.size(); ++i)
      sums_[i] = cumulative[i - 1] - (i == lowest_bit(i) ? 0 : cumulative[i - lowest_bit(i) - 1]);
  }

  /// The position whose part of the cumulative sum contains `value`.
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
  std::vector<uint64_t> sums_;  // sum of the lowest_bit(i) weights up to the i-th, counted from 1
};

class WeightedOrder final : public Order {
 public:
  WeightedOrder(const std::vector<double>& weights, const Weighted& options)
      : options_(options), cumulative_(integer_weights("weighted", weights, 0x1p61)) {
    const auto size = static_cast<int64_t>(weights.size());
    const int64_t drawable = size - std::count(cumulative_.begin(), cumulative_.end(), uint64_t{0});
    for (size_t i = 1; i < cumulative_.size(); ++i) cumulative_[i] += cumulative_[i - 1];
    TORCH_CHECK_VALUE(options.samples >= 0 && options.samples <= kMaxDrawnEpoch, "weighted: expected 0 to ",
                      kMaxDrawnEpoch, " samples per epoch, got ", options.samples, ".");
    TORCH_CHECK_VALUE(options.replacement || options.samples <= drawable, "weighted: ", options.samples,
                      " samples per epoch were requested without replacement, but only ", drawable,
                      " samples have a weight above 0. Draw fewer samples, or draw with replacement.");
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

class ClassBalancedOrder final : public Order {
 public:
  ClassBalancedOrder(const std::vector<int64_t>& labels, int64_t per_class)
      : members_(static_cast<int64_t>(labels.size()), static_cast<int64_t>(labels.size())) {
    TORCH_CHECK_VALUE(!labels.empty(), "class_balanced: expected a label for each sample, got none.");
    std::vector<int64_t> classes(labels);
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    const auto class_of = [&](int64_t label) {
      return static_cast<size_t>(std::lower_bound(classes.begin(), classes.end(), label) - classes.begin());
    };
    starts_.assign(classes.size() + 1, 0);
    for (const int64_t label : labels) ++starts_[class_of(label) + 1];
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    std::vector<int64_t> filled(starts_);
    for (size_t i = 0; i < labels.size(); ++i) members_.set(filled[class_of(labels[i])]++, static_cast<int64_t>(i));
    const int64_t most = kMaxDrawnEpoch / classes_count();
    TORCH_CHECK_VALUE(per_class >= 0 && per_class <= most, "class_balanced: expected 0 to ", most,
                      " samples of each of ", classes_count(), " classes, got ", per_class, ".");
    per_class_ = per_class > 0 ? per_class : (members_.size() - 1) / classes_count() + 1;
  }

  int64_t length(const Source& source, int64_t) const override {
    check_size("class_balanced", "labels", members_.size(), source);
    return per_class_ * classes_count();
  }
  bool repeats() const override { return true; }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    const int64_t classes = classes_count();
    Positions order(length(source, epoch), source.size()), turns(order.size(), source.size());
    for (int64_t c = 0; c < classes; ++c) take_turns(c, order_seed(seed), epoch, turns);
    RandomStream random(epoch_seed(seed, epoch));
    Positions round(classes, classes);
    for (int64_t c = 0; c < classes; ++c) round.set(c, c);
    for (int64_t r = 0; r < per_class_; ++r) {
      shuffle_within(round, 0, classes, random, [classes](int64_t) { return classes; });
      for (int64_t i = 0; i < classes; ++i) order.set(r * classes + i, turns[round[i] * per_class_ + r]);
    }
    return order;
  }

 private:
  int64_t classes_count() const { return static_cast<int64_t>(starts_.size()) - 1; }

  /// Writes the samples of class `c` in this epoch to turns[c · per_class …].
  void take_turns(int64_t c, uint64_t seed, int64_t epoch, Positions& turns) const {
    const int64_t first = starts_[static_cast<size_t>(c)], size = starts_[static_cast<size_t>(c) + 1] - first;
    Passes passes(size, seed, c, epoch * per_class_);
    for (int64_t i = 0; i < per_class_; ++i) turns.set(c * per_class_ + i, members_[first + passes.next()]);
  }

  Positions members_;            // class by class
  std::vector<int64_t> starts_;  // of each class in members_, plus the end
  int64_t per_class_ = 0;
};

class CurriculumOrder final : public Order {
 public:
  CurriculumOrder(const std::vector<double>& difficulty, Pacing pacing)
      : easiest_first_(static_cast<int64_t>(difficulty.size()), static_cast<int64_t>(difficulty.size())),
        pacing_(std::move(pacing)) {
    TORCH_CHECK_VALUE(pacing_, "curriculum: expected a pacing function, got an empty one.");
    std::vector<std::pair<double, int64_t>> ranking;
    ranking.reserve(difficulty.size());
    for (size_t i = 0; i < difficulty.size(); ++i) {
      TORCH_CHECK_VALUE(!std::isnan(difficulty[i]), "curriculum: the difficulty of sample ", i, " is NaN.");
      ranking.emplace_back(difficulty[i], static_cast<int64_t>(i));
    }
    std::sort(ranking.begin(), ranking.end());
    for (size_t i = 0; i < ranking.size(); ++i) easiest_first_.set(static_cast<int64_t>(i), ranking[i].second);
  }

  int64_t length(const Source& source, int64_t epoch) const override {
    check_size("curriculum", "difficulties", easiest_first_.size(), source);
    return let_in(static_cast<double>(epoch) + 1);
  }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    const int64_t end = length(source, epoch);
    Positions positions = easiest_first_;
    positions.truncate(end);
    RandomStream random(epoch_seed(seed, epoch));
    shuffle_within(positions, 0, end, random, [&](int64_t i) {
      const double progress = static_cast<double>(epoch) + static_cast<double>(i) / static_cast<double>(end);
      return std::clamp(let_in(progress), i + 1, end);
    });
    return positions;
  }

 private:
  /// Number of samples that may be drawn.
  int64_t let_in(double progress) const {
    const double share = pacing_(progress);
    TORCH_CHECK_VALUE(share > 0 && share <= 1,
                      "curriculum: expected the pacing function to return a share in (0, 1], got ", share,
                      " at progress ", progress, ".");
    const double samples = std::ceil(share * static_cast<double>(easiest_first_.size()));
    return std::min(static_cast<int64_t>(samples), easiest_first_.size());
  }

  Positions easiest_first_;
  Pacing pacing_;
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

OrderPtr weighted(const std::vector<double>& weights, Weighted options) {
  return std::make_shared<WeightedOrder>(weights, options);
}

OrderPtr class_balanced(const std::vector<int64_t>& labels, int64_t per_class) {
  return std::make_shared<ClassBalancedOrder>(labels, per_class);
}

OrderPtr curriculum(const std::vector<double>& difficulty, Pacing pacing) {
  return std::make_shared<CurriculumOrder>(difficulty, std::move(pacing));
}

Pacing growing_pacing(double start, double epochs, bool root) {
  TORCH_CHECK_VALUE(start > 0 && start <= 1, "growing_pacing: expected a start share in (0, 1], got ", start, ".");
  TORCH_CHECK_VALUE(epochs > 0 && std::isfinite(epochs), "growing_pacing: expected a positive number of epochs, got ",
                    epochs, ".");
  return [=](double progress) {
    const double done = std::clamp(progress / epochs, 0.0, 1.0);
    if (done >= 1) return 1.0;
    if (!root) return start + (1 - start) * done;
    return std::sqrt(start * start + (1 - start * start) * done);
  };
}

}  // namespace bellows::data
