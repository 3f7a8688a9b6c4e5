#include "bellows/data/order/buckets.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/data/order/shuffle.h"

namespace bellows::data {

namespace {

class BucketedOrder final : public Order {
 public:
  BucketedOrder(const std::vector<int64_t>& lengths, const Buckets& options)
      : options_(options), lengths_(static_cast<int64_t>(lengths.size()), bound(lengths)) {
    TORCH_CHECK_VALUE(options.together > 0 && options.window > 0 && options.window % options.together == 0,
                      "bucketed: expected a window that is a multiple of together, both at least 1, got ",
                      options.window, " and ", options.together, ".");
    for (size_t i = 0; i < lengths.size(); ++i) {
      TORCH_CHECK_VALUE(lengths[i] >= 0, "bucketed: sample ", i, " has length ", lengths[i], ".");
      lengths_.set(static_cast<int64_t>(i), lengths[i]);
    }
  }

  int64_t length(const Source& source, int64_t) const override {
    check_size("bucketed", "lengths", lengths_.size(), source);
    return source.size();
  }

  Positions positions(const Source& source, uint64_t seed, int64_t epoch) const override {
    const uint64_t base = epoch_seed(seed, epoch);
    Positions positions = permutation(length(source, epoch), base);
    RandomStream random(mix_seed(base, 1));
    for (int64_t begin = 0; begin < positions.size();) {
      const int64_t end = std::min(options_.window, positions.size() - begin) + begin;
      sort_window(positions, begin, end, random);
      begin = end;
    }
    return positions;
  }

 private:
  static int64_t bound(const std::vector<int64_t>& lengths) {
    const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    return longest < INT64_MAX ? longest + 1 : longest;
  }

  void sort_window(Positions& positions, int64_t begin, int64_t end, RandomStream& random) const {
    std::vector<std::pair<int64_t, int64_t>> window;  // length, previous position
    window.reserve(static_cast<size_t>(end - begin));
    for (int64_t i = begin; i < end; ++i) window.emplace_back(lengths_[positions[i]], i);
    std::sort(window.begin(), window.end());
    for (auto& [length, place] : window) place = positions[place];
    // A shorter last stretch stays last, because it would misalign the others with the batches.
    const int64_t whole = (end - begin) / options_.together;
    Positions stretches(whole, std::max<int64_t>(whole, 1));
    for (int64_t i = 0; i < whole; ++i) stretches.set(i, i);
    shuffle_within(stretches, 0, whole, random, [whole](int64_t) { return whole; });
    for (int64_t i = begin; i < end; ++i) {
      const int64_t stretch = (i - begin) / options_.together;
      const int64_t from = (stretch < whole ? stretches[stretch] : stretch) * options_.together;
      positions.set(i, window[static_cast<size_t>(from + (i - begin) % options_.together)].second);
    }
  }

  Buckets options_;
  Positions lengths_;
};

}  // namespace

OrderPtr bucketed(const std::vector<int64_t>& lengths, Buckets options) {
  return std::make_shared<BucketedOrder>(lengths, options);
}

double padding_share(const Positions& sequence, const std::vector<int64_t>& lengths, int64_t batch_size) {
  TORCH_CHECK_VALUE(batch_size > 0, "padding_share: expected a batch size of at least 1, got ", batch_size, ".");
  double used = 0, places = 0;
  for (int64_t begin = 0; begin < sequence.size();) {
    const int64_t rows = std::min(batch_size, sequence.size() - begin);
    int64_t longest = 0;
    for (int64_t i = begin; i < begin + rows; ++i) {
      TORCH_CHECK_VALUE(sequence[i] < static_cast<int64_t>(lengths.size()),
                        "padding_share: the sequence contains position ", sequence[i], ", but there are only ",
                        lengths.size(), " lengths. Pass one length per sample.");
      const int64_t length = lengths[static_cast<size_t>(sequence[i])];
      longest = std::max(longest, length);
      used += static_cast<double>(length);
    }
    places += static_cast<double>(longest) * static_cast<double>(rows);
    begin += rows;
  }
  return places > 0 ? 1 - used / places : 0;
}

}  // namespace bellows::data
