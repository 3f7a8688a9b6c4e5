#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "bellows/tune/trial.h"

namespace bellows::tune {

/// Proposes configurations.
/// Threads: not thread-safe
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Returns a configuration to try next. It may be one that was tried already.
  /// Params: trials – all trials so far, in the order of their numbers
  ///         random – the only source of randomness, so that a resumed search proposes the same configurations
  virtual Assignment propose(const SearchSpace& space, const std::vector<Trial>& trials,
                             RandomStream& random) const = 0;
};

/// Constants of TPE, which are Optuna's defaults.
struct TpeOptions {
  int64_t startup_trials = 10;  ///< number of finished trials before which configurations are random
  int64_t candidates = 24;      ///< number of configurations that are drawn from the good trials and compared
  /// Exponent of the probability that a configuration satisfies the constraints, divided by the share of the trials
  /// that do not. In c-TPE, the exponent is 1.
  double feasibility_weight = 6;
};

std::unique_ptr<Sampler> random_sampler();

/// Tree-structured Parzen estimators: the best tenth of the trials, at most 25, are good. The sampler draws candidates
/// from the density of the good trials, and returns the one with the largest ratio to the density of the others. Trials
/// that violate constraints are good only if fewer feasible trials are available. The order is then that of the
/// violation, so the search first finds feasible configurations and then better ones. If some trials violate
/// constraints, the candidate with the largest product of two factors is returned (c-TPE). The first one is the expected
/// improvement, which increases with the ratio but is bounded. The second one is a power of the estimated probability
/// that the candidate satisfies the constraints. Running trials count as bad, so that parallel trials differ. Failed
/// trials do not count.
/// Numerics: as good as Optuna's TPESampler at equal numbers of trials (tests/tune/sampler_test.cpp)
/// Cost:     O(trials × candidates × parameters)
/// Ref:      optuna.samplers.TPESampler, with `constraints_func` and `constant_liar`; arXiv:2211.14411
std::unique_ptr<Sampler> tpe_sampler(const TpeOptions& options = {});

/// Trials that TPE considers good, and all others, both in the order of their numbers.
struct TrialSplit {
  std::vector<Assignment> good, others;
};
TrialSplit split_trials(const std::vector<Trial>& trials);

}  // namespace bellows::tune
