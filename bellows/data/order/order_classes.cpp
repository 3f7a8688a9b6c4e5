#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "bellows/data/order/order_impl.h"

namespace bellows::data {

namespace {

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

  /// Writes what class `c` gives in this epoch at turns[c · per_class_ …].
  void take_turns(int64_t c, uint64_t seed, int64_t epoch, Positions& turns) const {
    const int64_t first = starts_[static_cast<size_t>(c)], size = starts_[static_cast<size_t>(c) + 1] - first;
    Passes passes(size, seed, c, epoch * per_class_);
    for (int64_t i = 0; i < per_class_; ++i) turns.set(c * per_class_ + i, members_[first + passes.next()]);
  }

  Positions members_;            // class after class
  std::vector<int64_t> starts_;  // of each class in members_, and the end
  int64_t per_class_ = 0;
};

}  // namespace

OrderPtr class_balanced(const std::vector<int64_t>& labels, int64_t per_class) {
  return std::make_shared<ClassBalancedOrder>(labels, per_class);
}

}  // namespace bellows::data
