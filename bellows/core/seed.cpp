#include "bellows/core/seed.h"

#include <ATen/Context.h>

#include <atomic>
#include <numeric>

#include "bellows/core/error.h"

namespace bellows {

namespace {

std::atomic<bool> seeded_flag{false};

uint64_t scramble(uint64_t x) {  // finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr uint64_t golden_gamma = 0x9e3779b97f4a7c15ULL;

}  // namespace

void seed_everything(uint64_t seed) {
  at::manual_seed(seed);  // seeds the CPU and all devices that are present
  seeded_flag = true;
}

bool seeded() {
  return seeded_flag;
}

uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t state = scramble(a + golden_gamma);
  state = scramble(state ^ (b + 2 * golden_gamma));
  return scramble(state ^ (c + 3 * golden_gamma));
}

uint64_t rank_seed(uint64_t seed, int rank) {
  return rank == 0 ? seed : mix_seed(seed, static_cast<uint64_t>(rank));
}

uint64_t RandomStream::next() {
  return scramble(state_ += golden_gamma);
}

uint64_t RandomStream::below(uint64_t bound) {
  TORCH_CHECK_VALUE(bound > 0, "RandomStream::below: expected a bound of at least 1, got 0.");
  for (;;) {
    const uint64_t value = next();
    // The first 2^64 mod bound values would bias the result. They are smaller than `bound`, so larger values need no
    // check.
    if (value >= bound || value >= -bound % bound) return value % bound;
  }
}

double RandomStream::uniform() {
  return static_cast<double>(next() >> 11) * 0x1p-53;
}

std::vector<int64_t> random_permutation(int64_t n, uint64_t seed) {
  TORCH_CHECK_VALUE(n >= 0, "random_permutation: expected a length of at least 0, got ", n, ".");
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  RandomStream random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace bellows
