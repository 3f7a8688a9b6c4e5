#include "bellows/tune/sampler.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "bellows/tune/parzen_estimator.h"

namespace bellows::tune {

namespace {

class RandomSampler final : public Sampler {
 public:
  Assignment propose(const SearchSpace& space, const std::vector<Trial>&, RandomStream& random) const override {
    return space.draw(random);
  }
};

/// Optuna's default_gamma(): a tenth of the finished trials, at most 25.
size_t good_count(size_t finished) {
  return std::min<size_t>((finished + 9) / 10, 25);
}

/// Smaller is better: feasible complete trials by objective, then pruned trials by progress, then by violation.
std::tuple<int, double, double> trial_rank(const Trial& trial) {
  if (trial.state == TrialState::running) return {3, 0, 0};
  if (trial.violation > 0) return {2, trial.violation, 0};
  if (trial.state == TrialState::complete) return {0, trial.objective, 0};
  if (trial.reports.empty()) return {1, 1, 0};
  const TrialReport& last = trial.reports.back();
  return {1, -static_cast<double>(last.step), std::isnan(last.value) ? HUGE_VAL : last.value};
}

/// The probability that a configuration satisfies the constraints, estimated from the trials so far. If all trials
/// satisfy them or none does, it does not vary between configurations.
class Feasibility {
 public:
  Feasibility(const SearchSpace& space, const std::vector<Trial>& trials) {
    std::vector<Assignment> satisfying, violating;
    for (const Trial& trial : trials) {
      // A pruned trial without a violation has not reported all constrained metrics.
      if (trial.violation > 0 ? !trial.succeeded() : trial.state != TrialState::complete) continue;
      (trial.violation > 0 ? violating : satisfying).push_back(trial.values);
    }
    if (satisfying.empty() || violating.empty()) return;
    violating_share_ =
        static_cast<double>(violating.size()) / static_cast<double>(satisfying.size() + violating.size());
    log_odds_ = std::log((1 - violating_share_) / violating_share_);
    satisfying_.emplace(space, satisfying);
    violating_.emplace(space, violating);
  }

  bool varies() const { return satisfying_.has_value(); }
  double violating_share() const { return violating_share_; }
  /// Requires varies().
  double log_probability(const Assignment& values) const {
    return -std::log1p(std::exp(violating_->log_density(values) - satisfying_->log_density(values) - log_odds_));
  }

 private:
  double violating_share_ = 0, log_odds_ = 0;
  std::optional<ParzenEstimator> satisfying_, violating_;
};

/// The logarithm of the expected improvement, without a constant. It grows with the ratio of the densities, but it is
/// bounded, so that it can be weighed against the probability of satisfying the constraints.
double log_improvement(double log_ratio, double share) {
  return -std::log(share + (1 - share) * std::exp(-log_ratio));
}

class TpeSampler final : public Sampler {
 public:
  explicit TpeSampler(const TpeOptions& options) : options_(options) {}

  Assignment propose(const SearchSpace& space, const std::vector<Trial>& trials, RandomStream& random) const override {
    if (std::ranges::count_if(trials, &Trial::succeeded) < options_.startup_trials) return space.draw(random);
    const TrialSplit split = split_trials(trials);
    const ParzenEstimator good(space, split.good), others(space, split.others);
    const double share =
        static_cast<double>(split.good.size()) / static_cast<double>(split.good.size() + split.others.size());
    const Feasibility feasibility(space, trials);
    const double weight = options_.feasibility_weight * feasibility.violating_share();
    Assignment best;
    double best_score = -HUGE_VAL;
    for (int64_t i = 0; i < options_.candidates; ++i) {
      Assignment candidate = good.sample(random);
      double score = good.log_density(candidate) - others.log_density(candidate);
      if (feasibility.varies()) score = log_improvement(score, share) + weight * feasibility.log_probability(candidate);
      if (!best.empty() && !(score > best_score)) continue;
      best = std::move(candidate), best_score = score;
    }
    return best;
  }

 private:
  const TpeOptions options_;
};

}  // namespace

TrialSplit split_trials(const std::vector<Trial>& trials) {
  std::vector<const Trial*> ranked;
  ranked.reserve(trials.size());
  for (const Trial& trial : trials) {
    if (trial.succeeded() || trial.state == TrialState::running) ranked.push_back(&trial);
  }
  const auto finished = static_cast<size_t>(std::ranges::count_if(trials, &Trial::succeeded));
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Trial* a, const Trial* b) { return trial_rank(*a) < trial_rank(*b); });
  const auto middle = ranked.begin() + static_cast<ptrdiff_t>(good_count(finished));
  const auto by_number = [](const Trial* a, const Trial* b) { return a->number < b->number; };
  std::sort(ranked.begin(), middle, by_number);
  std::sort(middle, ranked.end(), by_number);
  TrialSplit split;
  const auto values = [](const Trial* trial) { return trial->values; };
  std::transform(ranked.begin(), middle, std::back_inserter(split.good), values);
  std::transform(middle, ranked.end(), std::back_inserter(split.others), values);
  return split;
}

std::unique_ptr<Sampler> random_sampler() {
  return std::make_unique<RandomSampler>();
}

std::unique_ptr<Sampler> tpe_sampler(const TpeOptions& options) {
  return std::make_unique<TpeSampler>(options);
}

const Trial* best_trial(const std::vector<Trial>& trials) {
  const Trial* best = nullptr;
  for (const Trial& trial : trials) {
    if (trial.feasible() && (!best || trial.objective < best->objective)) best = &trial;
  }
  return best;
}

}  // namespace bellows::tune
