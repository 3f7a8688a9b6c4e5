#pragma once

#include <cstdint>
#include <vector>

namespace bellows {

/// Seeds every generator libtorch has in this process: CPU, and each CUDA, MPS or XPU device that is present.
/// Ref: torch.manual_seed
void seed_everything(uint64_t seed);

/// True once seed_everything was called in this process.
bool seeded();

/// A seed that depends on all of the parts and looks unrelated for neighbours: mix_seed(seed, epoch, sample).
/// Pure; the same on every machine.
uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c = 0);

/// The seed of a rank's own random numbers, such as its dropout masks: `seed` itself on rank 0, so that one process draws what
/// it draws alone; unrelated to that of other ranks and other seeds elsewhere.
uint64_t rank_seed(uint64_t seed, int rank);

/// A small random stream that is the same on every machine and needs no torch generator (splitmix64).
/// Threads: one stream a thread.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// Uniform in [0, bound), without modulo bias. Throws c10::ValueError when bound is 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();

 private:
  uint64_t state_;
};

/// A permutation of 0 … n-1 (Fisher–Yates over RandomStream), the same on every machine.
std::vector<int64_t> random_permutation(int64_t n, uint64_t seed);

}  // namespace bellows
