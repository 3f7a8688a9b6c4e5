#pragma once

#include <cstdint>
#include <random>

namespace bellows::serve {

/// The intended starts of the requests of an open loop, in nanoseconds after the start of the level.
class Arrivals {
 public:
  /// Params: rate    – requests per second
  ///         poisson – exponentially distributed distances, instead of equal ones
  Arrivals(double rate, bool poisson, uint64_t seed) : rate_(rate), poisson_(poisson), random_(seed) {}

  /// Returns the next start. The first one of equal distances is 0.
  int64_t next() {
    if (!poisson_) return static_cast<int64_t>(1e9 * static_cast<double>(count_++) / rate_);
    at_s_ += std::exponential_distribution<double>(rate_)(random_);
    return static_cast<int64_t>(1e9 * at_s_);
  }

 private:
  double rate_;
  bool poisson_;
  std::mt19937_64 random_;
  int64_t count_ = 0;
  double at_s_ = 0;
};

}  // namespace bellows::serve
