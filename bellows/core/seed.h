#pragma once

#include <cstdint>
#include <vector>

namespace bellows {

/// Seeds all generators of libtorch in this process: the CPU's and those of each CUDA, MPS or XPU device.
/// Ref: torch.manual_seed
void seed_everything(uint64_t seed);

/// Returns true after seed_everything() was called in this process.
bool seeded();

/// Derives a seed from all arguments, such as mix_seed(seed, epoch, sample). Nearby arguments give unrelated seeds.
/// Pure function; the result is the same on every machine.
uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c = 0);

/// The seed of a rank's own random numbers, such as dropout masks. On rank 0 it equals `seed`, so a single process
/// draws the same numbers as without ranks. On other ranks it is unrelated to `seed` and to the seeds of the other
/// ranks.
uint64_t rank_seed(uint64_t seed, int rank);

/// A random number generator (splitmix64) whose numbers are the same on every machine. It needs no torch generator.
/// Threads: one generator per thread
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// Uniform in [0, bound), without modulo bias. Throws c10::ValueError if bound is 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();

 private:
  uint64_t state_;
};

/// A permutation of 0 … n-1 (Fisher–Yates over RandomStream), the same on every machine.
std::vector<int64_t> random_permutation(int64_t n, uint64_t seed);

}  // namespace bellows
