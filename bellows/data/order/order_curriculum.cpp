#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "bellows/data/order/order_impl.h"

namespace bellows::data {

namespace {

class CurriculumOrder final : public Order {
 public:
  CurriculumOrder(const std::vector<double>& difficulty, Pacing pacing)
      : easiest_first_(static_cast<int64_t>(difficulty.size()), static_cast<int64_t>(difficulty.size())),
        pacing_(std::move(pacing)) {
    TORCH_CHECK_VALUE(pacing_, "curriculum: expected a pacing function, got an empty one.");
    std::vector<std::pair<double, int64_t>> ranking;
    ranking.reserve(difficulty.size());
    for (size_t i = 0; i < difficulty.size(); ++i) {
      TORCH_CHECK_VALUE(!std::isnan(difficulty[i]), "curriculum: the difficulty of sample ", i, " is not a number.");
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
  /// Samples that may be drawn.
  int64_t let_in(double progress) const {
    const double share = pacing_(progress);
    TORCH_CHECK_VALUE(share > 0 && share <= 1,
                      "curriculum: expected the pacing function to give a share in (0, 1], got ", share,
                      " at progress ", progress, ".");
    const double samples = std::ceil(share * static_cast<double>(easiest_first_.size()));
    return std::min(static_cast<int64_t>(samples), easiest_first_.size());
  }

  Positions easiest_first_;
  Pacing pacing_;
};

}  // namespace

OrderPtr curriculum(const std::vector<double>& difficulty, Pacing pacing) {
  return std::make_shared<CurriculumOrder>(difficulty, std::move(pacing));
}

Pacing growing_pacing(double start, double epochs, bool root) {
  TORCH_CHECK_VALUE(start > 0 && start <= 1, "growing_pacing: expected a share in (0, 1] to start with, got ", start,
                    ".");
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
