#pragma once

#include <vector>

#include "bellows/tune/search_space.h"

namespace bellows::tune {

/// The density of configurations, estimated from observed ones: a mixture of one kernel per observation and one wide
/// kernel for the prior. A kernel is the product of one distribution per parameter: a truncated normal distribution for
/// numbers, and smoothed frequencies for choices. The width of a normal distribution is the larger distance to a
/// neighbouring observation. The 25 newest observations have equal weights, and the weights of older ones decrease
/// linearly.
/// Numerics: log_density() equals Optuna's multivariate TPE to rtol 1e-9 (tests/tune/sampler_test.cpp)
/// Ref:      optuna.samplers.TPESampler with its defaults; arXiv:2304.11127
class ParzenEstimator {
 public:
  /// Params: space        – must live as long as this object
  ///         observations – oldest first
  ParzenEstimator(const SearchSpace& space, const std::vector<Assignment>& observations);

  Assignment sample(RandomStream& random) const;
  /// Returns the logarithm of the density. Parameters with steps or choices contribute a probability. Logarithmic
  /// parameters contribute the density of the logarithm.
  double log_density(const Assignment& values) const;

 private:
  /// The distribution of one parameter in one kernel.
  struct Marginal {
    double mean = 0, width = 0;           ///< of a number
    std::vector<double> probabilities{};  ///< of a choice
  };
  std::vector<Marginal> number_marginals(size_t parameter, const std::vector<Assignment>& observations) const;
  std::vector<Marginal> choice_marginals(size_t parameter, const std::vector<Assignment>& observations) const;

  const SearchSpace& space_;
  std::vector<double> weights_;                   ///< by kernel; the last one is the prior
  std::vector<std::vector<Marginal>> marginals_;  ///< by parameter and kernel
};

}  // namespace bellows::tune
