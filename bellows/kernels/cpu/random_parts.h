#pragma once

#include <cstddef>
#include <cstdint>

#include "bellows/kernels/random.h"

namespace bellows::kernels {

constexpr size_t twister_block = MersenneTwister::size;

/// Computes the `blocks` blocks that follow the block at `words`, and stores them behind it.
/// Params: words – [(blocks + 1) · 624], before tempering
void twist_blocks(uint32_t* words, size_t blocks);
/// Tempers `count` words. `out` may be `words`.
void temper_words(const uint32_t* words, uint32_t* out, size_t count);

/// Values are computed in units: 16 values for the normal law, else one value.
struct RandomUnit {
  size_t values, words;
};
RandomUnit unit_of(const RandomFill& fill);
/// Computes `units` units from tempered words. The values are contiguous.
void convert_words(const RandomFill& fill, const uint32_t* words, void* out, size_t units);
/// The part of convert_words() for the normal law.
void convert_normal(const RandomFill& fill, const uint32_t* words, void* out, size_t groups);
/// Returns whether the kernels for this processor round a product and a following sum once, and round halves to nearest.
/// These kernels have vectors of at least eight floats.
bool has_fused_vectors();

/// Computes out = word · 2^−24 < p (float), with 24 bits of each word.
void compare_narrow(const uint32_t* words, const float* p, uint8_t* out, size_t count);
/// Computes out = word · 2^−53 < p (double), with 53 bits of each pair of words.
void compare_wide(const uint32_t* words, const double* p, uint8_t* out, size_t count);

}  // namespace bellows::kernels
