// The Mersenne Twister, compiled once per instruction set that Highway supports; the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/random_words.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include "bellows/kernels/cpu/random_parts.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 624 is a multiple of the lanes.
using WordTag = hn::CappedTag<uint32_t, 16>;

/// Word k + 624 depends on the words k, k + 1 and k + 397 only. In a linear array, a vector of results therefore needs
/// no special case at the end of a block.
HWY_INLINE void twist_block(uint32_t* words) {
  const WordTag d;
  const size_t lanes = hn::Lanes(d);
  const auto upper = hn::Set(d, 0x80000000u), matrix = hn::Set(d, 0x9908b0dfu);
  const auto one = hn::Set(d, 1u), zero = hn::Zero(d);
  for (size_t k = 0; k < twister_block; k += lanes) {
    const auto low = hn::LoadU(d, words + k + 1);
    const auto mixed = hn::Or(hn::And(hn::LoadU(d, words + k), upper), hn::AndNot(upper, low));
    const auto odd = hn::And(hn::Sub(zero, hn::And(low, one)), matrix);
    const auto shifted = hn::Xor(hn::ShiftRight<1>(mixed), odd);
    hn::StoreU(hn::Xor(shifted, hn::LoadU(d, words + k + 397)), d, words + k + twister_block);
  }
}

void twist_blocks_impl(uint32_t* words, size_t blocks) {
  for (size_t b = 0; b < blocks; ++b) twist_block(words + b * twister_block);
}

template <class D>
HWY_INLINE hn::Vec<D> temper(D d, hn::Vec<D> y) {
  y = hn::Xor(y, hn::ShiftRight<11>(y));
  y = hn::Xor(y, hn::And(hn::ShiftLeft<7>(y), hn::Set(d, 0x9d2c5680u)));
  y = hn::Xor(y, hn::And(hn::ShiftLeft<15>(y), hn::Set(d, 0xefc60000u)));
  return hn::Xor(y, hn::ShiftRight<18>(y));
}

void temper_words_impl(const uint32_t* words, uint32_t* out, size_t count) {
  const WordTag d;
  const hn::CappedTag<uint32_t, 1> d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(temper(d, hn::LoadU(d, words + i)), d, out + i);
  for (; i < count; ++i) hn::StoreU(temper(d1, hn::LoadU(d1, words + i)), d1, out + i);
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace bellows::kernels {

HWY_EXPORT(twist_blocks_impl);
HWY_EXPORT(temper_words_impl);

void twist_blocks(uint32_t* words, size_t blocks) {
  HWY_DYNAMIC_DISPATCH(twist_blocks_impl)(words, blocks);
}

void temper_words(const uint32_t* words, uint32_t* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(temper_words_impl)(words, out, count);
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
