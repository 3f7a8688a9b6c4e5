#pragma once

#include <cstdint>
#include <vector>

namespace bellows {

/// Seeds all libtorch generators in this process: the CPU generator and the generators of all CUDA, MPS and XPU
/// devices.
/// Ref: torch.manual_seed
void seed_everything(uint64_t seed);

/// Returns whether seed_everything() was called in this process.
bool seeded();

/// Derives a seed from all arguments, such as mix_seed(seed, epoch, sample). Similar arguments give unrelated seeds.
/// The result is the same on every machine.
uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c = 0);

/// Returns the seed for random numbers that differ between ranks, such as dropout masks. On rank 0, it is equal to
/// `seed`, so rank 0 draws the same numbers as a single process. On each other rank, it is unrelated to `seed` and to
/// the seeds of all other ranks.
uint64_t rank_seed(uint64_t seed, int rank);

/// A random number generator (splitmix64) that returns the same numbers on every machine. It is independent of
/// libtorch's generators.
/// Threads: not thread-safe; use one generator per thread
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// Returns a uniformly distributed number in [0, bound), without modulo bias.
  /// Throws: c10::ValueError if bound is 0
  uint64_t below(uint64_t bound);
  /// Returns a uniformly distributed number in [0, 1) with 53 random bits.
  double uniform();

 private:
  uint64_t state_;
};

/// Returns a random permutation of 0 … n-1 (Fisher–Yates with RandomStream). It is the same on every machine.
std::vector<int64_t> random_permutation(int64_t n, uint64_t seed);

}  // namespace bellows
