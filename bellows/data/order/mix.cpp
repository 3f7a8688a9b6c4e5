#include "bellows/data/order/mix.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/data/order/shuffle.h"

namespace bellows::data {

namespace {

__extension__ using Wide = __int128;  // products of two 62-bit numbers

class ConcatSource final : public Source {
 public:
  using Source::read;

  explicit ConcatSource(std::vector<SourcePtr> sources) : sources_(std::move(sources)) {
    TORCH_CHECK_VALUE(!sources_.empty(), "concat: expected at least one source, got none.");
    for (const SourcePtr& source : sources_) {
      TORCH_CHECK_VALUE(source, "concat: expected sources, got null.");
      starts_.push_back(size_);
      size_ += source->size();
    }
  }

  int64_t size() const override { return size_; }

  void read(int64_t index, Sample& sample) const override {
    const size_t which = source_of(index);
    sources_[which]->read(index - starts_[which], sample);
    sample.id = index;
  }

  bool prefetch(int64_t index) const override {
    const size_t which = source_of(index);
    return sources_[which]->prefetch(index - starts_[which]);
  }

  std::string describe() const override {
    return c10::str(sources_.size(), " datasets (", sources_.front()->describe(), sources_.size() == 1 ? ")" : ", …)");
  }

  bool stored() const override {
    return std::all_of(sources_.begin(), sources_.end(), [](const SourcePtr& source) { return source->stored(); });
  }

  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> starts;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i]->size() == 0) continue;
      std::vector<int64_t> inner = sources_[i]->block_starts();
      if (inner.empty()) inner = {0};
      for (const int64_t start : inner) starts.push_back(starts_[i] + start);
    }
    return starts;
  }

 private:
  size_t source_of(int64_t index) const {
    return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), index) - starts_.begin()) - 1;
  }

  std::vector<SourcePtr> sources_;
  std::vector<int64_t> starts_;
  int64_t size_ = 0;
};

/// Chooses the next dataset. Each error (the dataset's share of the samples so far minus its samples) stays within 1.
class Turns {
 public:
  explicit Turns(const std::vector<int64_t>& weights) : weights_(weights), errors_(weights.size()) {
    for (const int64_t weight : weights) sum_ += weight;
  }

  /// Among the datasets whose error has reached the bound, the one whose error would exceed the other bound first.
  size_t next() {
    const auto slack = static_cast<Wide>(2 * std::max<size_t>(weights_.size(), 2) - 2);
    size_t chosen = weights_.size();
    Wide left = 0;  // of the chosen one: how much its error may still grow, times slack
    for (size_t i = 0; i < weights_.size(); ++i) {
      errors_[i] += weights_[i];
      const Wide error = errors_[i] * slack;
      if (error < sum_) continue;
      const Wide mine = sum_ * (slack - 1) - error;
      if (chosen < weights_.size() && mine * weights_[chosen] >= left * weights_[i]) continue;
      chosen = i;
      left = mine;
    }
    errors_[chosen] -= sum_;
    return chosen;
  }

 private:
  const std::vector<int64_t>& weights_;
  std::vector<Wide> errors_;  // times sum_
  Wide sum_ = 0;
};

class MixedOrder final : public Order {
 public:
  MixedOrder(std::vector<int64_t> sizes, const std::vector<double>& weights, MixEnd end) : sizes_(std::move(sizes)) {
    TORCH_CHECK_VALUE(sizes_.size() == weights.size(), "mixed: expected a weight for each of ", sizes_.size(),
                      " datasets, got ", weights.size(), ".");
    Wide sum = 0;
    for (const uint64_t weight : integer_weights("mixed", weights, 0x1p40)) {
      weights_.push_back(static_cast<int64_t>(weight));
      sum += weights_.back();
    }
    for (size_t i = 0; i < sizes_.size(); ++i) {
      TORCH_CHECK_VALUE(sizes_[i] > 0 && weights_[i] > 0,
                        "mixed: expected datasets with samples and a weight above 0, but dataset ", i, " has ",
                        sizes_[i], " samples and weight ", weights[i], ". Leave out this dataset.");
      const Wide samples = sizes_[i] * sum;
      const Wide used_up = end == MixEnd::first ? samples / weights_[i] : (samples - 1) / weights_[i] + 1;
      const bool decides = i == 0 || (end == MixEnd::first ? used_up < length_ : used_up > length_);
      if (decides) length_ = static_cast<int64_t>(std::min<Wide>(used_up, INT64_MAX));
      total_ += sizes_[i];
    }
    TORCH_CHECK_VALUE(length_ <= kMaxDrawnEpoch, "mixed: an epoch would have ", length_,
                      " samples until the dataset with the smallest weight is used up, but the limit is ",
                      kMaxDrawnEpoch, ". Increase its weight, or end the epoch with the first dataset.");
  }

  int64_t length(const Source& source, int64_t) const override {
    check_size("mixed", "samples in all datasets", total_, source);
    return length_;
  }
  bool repeats() const override { return true; }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    Positions order(length(source, epoch), source.size());
    std::vector<int64_t> given(sizes_.size());
    Turns turns(weights_);
    for (int64_t i = 0; i < length_; ++i) {
      const size_t turn = turns.next();
      ++given[turn];
      order.set(i, static_cast<int64_t>(turn));
    }
    std::vector<Passes> passes;
    std::vector<int64_t> starts{0};
    for (size_t i = 0; i < sizes_.size(); ++i) {
      passes.emplace_back(sizes_[i], order_seed(seed), static_cast<int64_t>(i), epoch * given[i]);
      starts.push_back(starts.back() + sizes_[i]);
    }
    for (int64_t i = 0; i < length_; ++i) {
      const auto turn = static_cast<size_t>(order[i]);
      order.set(i, starts[turn] + passes[turn].next());
    }
    return order;
  }

 private:
  std::vector<int64_t> sizes_, weights_;
  int64_t length_ = 0, total_ = 0;
};

}  // namespace

SourcePtr concat(std::vector<SourcePtr> sources) {
  return std::make_shared<ConcatSource>(std::move(sources));
}

OrderPtr mixed(std::vector<int64_t> sizes, const std::vector<double>& weights, MixEnd end) {
  return std::make_shared<MixedOrder>(std::move(sizes), weights, end);
}

}  // namespace bellows::data
