#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

namespace bellows::kernels {

/// The state of libtorch's CPU generator, which is the Mersenne Twister MT19937 (at::mt19937).
struct MersenneTwister {
  static constexpr int64_t size = 624;
  std::array<uint32_t, size> words{};  ///< the current block, before tempering
  int left = 1;                        ///< 1 + number of words of the block that are still to be drawn
  uint32_t next = 0;                   ///< index of the next word in the block

  /// Returns whether all words that are still to be drawn lie in the block.
  bool is_valid() const {
    return left >= 1 && left <= size && next <= size && static_cast<int64_t>(next) + left - 1 <= size;
  }
};

/// How random words become values. The formulas are those of libtorch's CPU kernels.
enum class RandomLaw : uint8_t {
  bernoulli,  ///< 1 with probability `a`, else 0
  uniform,    ///< real numbers in [a, b)
  normal,     ///< pairs of Box and Muller with mean `a` and standard deviation `b`, in groups of 16 values
  integers    ///< base + word modulo range
};

/// Arguments of random_fill().
struct RandomFill {
  RandomLaw law = RandomLaw::uniform;
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of the values
  double a = 0, b = 1;
  uint64_t range = 0;  ///< of integers; 0: no modulo
  int64_t base = 0;    ///< of integers
  bool wide = false;   ///< integers are drawn from 64 instead of 32 bits
  /// Whether a product and the following sum are rounded once, as in libtorch's kernels for processors with AVX2. Has no
  /// effect on integers and on the bernoulli law.
  bool fused = true;
};

/// Returns whether random_fill() has a kernel for these arguments on this processor. Fused rounding, normal values of type
/// float and real values of type Half need AVX2.
bool can_random_fill(const RandomFill& fill);

/// Fills memory with random values and advances the generator.
/// Params:   out    – `count` values of type fill.dtype; `stride` is the distance from one to the next in bytes
///           count  – for the normal law at least 16, and the values must be contiguous
/// Numerics: values and state are bit-identical to those of libtorch's CPU kernels, and do not depend on the number of
///           threads. tests/kernels/random_test.cpp compares them with libtorch and with the reference implementation
/// Cost:     0.2 ns for each 32-bit word on one core (3 GHz, AVX-512), and the computation of the values. Writes each
///           value once. With several threads, one thread advances the generator while others compute values
/// Threads:  uses libtorch's intra-op threads. The caller must hold the generator's mutex
/// Throws:   c10::ValueError if there is no kernel (can_random_fill()), or if `state` is not valid
void random_fill(MersenneTwister& state, const RandomFill& fill, void* out, int64_t stride, int64_t count);

/// Arguments of random_bernoulli(), which draws from one probability per value.
struct RandomBernoulli {
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of the values
  void* out = nullptr;
  int64_t out_stride = 0;                            ///< in bytes
  c10::ScalarType p_dtype = c10::ScalarType::Float;  ///< Float, Double, BFloat16 or Half
  const void* p = nullptr;                           ///< probabilities in [0, 1]
  int64_t p_stride = 0;                              ///< in bytes
  int64_t count = 0;
};

/// Like random_fill(). Runs on one thread.
void random_bernoulli(MersenneTwister& state, const RandomBernoulli& args);

/// Fills `out` with a permutation of 0 … count − 1, as at::randperm.
/// Params: dtype – Long or Int
///         count – less than 2^32 / 20; libtorch draws longer permutations in a different way
/// Cost:   one random access to `out` for each value, on one thread
void random_permutation(MersenneTwister& state, c10::ScalarType dtype, void* out, int64_t count);

/// Draws `count` words, as at::mt19937::operator() does.
void random_words(MersenneTwister& state, uint32_t* out, int64_t count);

/// Reference implementations in plain C++. They draw one word at a time.
namespace ref {
uint32_t random_word(MersenneTwister& state);
void random_fill(MersenneTwister& state, const RandomFill& fill, void* out, int64_t stride, int64_t count);
}  // namespace ref

}  // namespace bellows::kernels
