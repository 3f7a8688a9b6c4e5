#include "bellows/kernels/cpu/low_bit.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "bellows/kernels/cpu/optimizer_chunks.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/low_bit.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "bellows/kernels/cpu/optimizer_rules_impl.h"
#include "bellows/kernels/dynamic_map.h"

// Conversion between codes of low-bit state and floats, one vector at a time.
HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using IntOf = hn::Vec<hn::RebindToSigned<D>>;

/// After adding this constant to a small number, the low bits hold the nearest integer.
constexpr float integers = 0x1.8p23f;

/// A table of sixteen floats, indexed by the lowest four bits; held in registers if these are wide enough.
template <class D>
class Table16 {
  using V = hn::Vec<D>;
  static constexpr size_t lanes = hn::MaxLanes(D());

 public:
  /// Params: first – index of the first value
  Table16(D d, const std::array<float, 16>& values, int first = 0) {
    for (size_t i = 0; i < 16; ++i) values_[(i + static_cast<size_t>(first)) % 16] = values[i];
    low_ = hn::Load(d, values_);
    high_ = hn::Load(d, values_ + 16 - lanes);
  }
  /// The table with all values multiplied. It avoids loads from memory, which would wait for pending stores.
  HWY_INLINE Table16 times(D d, float factor) const {
    const V by = hn::Set(d, factor);
    Table16 result;
    result.low_ = hn::Mul(low_, by);
    result.high_ = hn::Mul(high_, by);
    if constexpr (lanes < 8) {
      for (size_t i = 0; i < 16; i += lanes) hn::Store(hn::Mul(hn::Load(d, values_ + i), by), d, result.values_ + i);
    }
    return result;
  }
  HWY_INLINE V at(D d, IntOf<D> index) const {
    const hn::RebindToSigned<D> di;
    if constexpr (lanes == 16) {
#if HWY_IS_DEBUG_BUILD
      index = hn::And(index, hn::Set(di, 15));
#endif
      return hn::TableLookupLanes(low_, hn::IndicesFromVec(d, index));  // uses four bits only
    } else if constexpr (lanes == 8) {
      const auto lane = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 7)));
      const auto upper = hn::BitCast(d, hn::ShiftLeft<28>(index));
      return hn::IfNegativeThenElse(upper, hn::TableLookupLanes(high_, lane), hn::TableLookupLanes(low_, lane));
    } else {
      return hn::GatherIndex(d, values_, hn::And(index, hn::Set(di, 15)));
    }
  }

 private:
  Table16() = default;
  alignas(64) float values_[16];
  V low_, high_;
};

template <class D, class Map>
class Decoder;
template <class D, class Map>
class Encoder;

/// Codes to floats.
template <class D, int Decades, bool Signed>
class Decoder<D, DynamicMap<Decades, Signed>> {
  using Map = DynamicMap<Decades, Signed>;
  // A float's bits shifted right by 23 are its exponent + 127; the tables use four bits of it. Signed Y are multiplied
  // by 4, so that the index of a decade never equals that of zero, whose bits are 0.
  static constexpr float stretch = Signed ? 4 : 1;
  static constexpr int first_index = 127 + (Signed ? 2 : 0) + Map::exponent_of_one - (Decades + 1);

 public:
  Decoder(D d, const Map& map) : offset_(d, map.offset, first_index), slope_(d, map.slope, first_index) {}
  /// The decoder for a block with this scale.
  HWY_INLINE Decoder times(D d, float scale) const {
    return {offset_.times(d, scale), slope_.times(d, scale / stretch)};
  }
  HWY_INLINE hn::Vec<D> operator()(D d, IntOf<D> code) const {
    const auto number = hn::ConvertTo(d, code);
    const auto y = Signed ? hn::MulAdd(number, hn::Set(d, stretch), hn::Set(d, -stretch * Map::zero))
                          : hn::Add(number, hn::Set(d, 1.5f));
    const auto exponent = hn::ShiftRight<23>(hn::BitCast(hn::RebindToSigned<D>(), y));
    const auto offset = offset_.at(d, exponent);
    return hn::MulSub(slope_.at(d, exponent), y, Signed ? hn::CopySignToAbs(offset, y) : offset);
  }

 private:
  Decoder(const Table16<D>& offset, const Table16<D>& slope) : offset_(offset), slope_(slope) {}
  Table16<D> offset_, slope_;
};

/// Floats of magnitude at most 1 to codes. The decade is estimated from the bits, which equal 2^23 · (log2(x) + 127) to
/// within 0.09. The estimate below is at most one decade too low, and one comparison with the start of the next decade
/// corrects it.
template <class D, int Decades, bool Signed>
class Encoder<D, DynamicMap<Decades, Signed>> {
  using Map = DynamicMap<Decades, Signed>;

 public:
  Encoder(D d, const Map& map)
      : threshold_(d, map.threshold), slope_(d, map.code_slope), offset_(d, map.code_offset), limit_(d, map.limit) {}
  static constexpr int zero = Map::zero;
  /// The code relative to the code of zero, not yet rounded. Values below all codes give the first code.
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> value) const {
    const hn::RebindToSigned<D> di;
    const auto least = hn::Set(d, Decades == 7 ? 6e-8f : 7e-4f);  // maps to zero, with estimate 0
    const auto x = hn::Max(Signed ? hn::Abs(value) : value, least);
    const auto line = hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, x)), hn::Set(d, 0.2988f / 0x1p23f),
                                 hn::Set(d, integers + static_cast<float>(Decades - 38)));
    const auto guess = hn::BitCast(di, line);
    const auto higher = hn::RebindMask(di, hn::Ge(x, threshold_.at(d, guess)));
    const auto e = hn::IfThenElse(higher, hn::Add(guess, hn::Set(di, 1)), guess);
    const auto magnitude = hn::Min(hn::MulAdd(x, slope_.at(d, e), offset_.at(d, e)), limit_.at(d, e));
    return Signed ? hn::CopySignToAbs(magnitude, value) : hn::Max(magnitude, hn::Set(d, Map::least));
  }

 private:
  Table16<D> threshold_, slope_, offset_, limit_;
};

template <class D>
class Decoder<D, LinearMap4> {
 public:
  Decoder(D d, const LinearMap4&) : step_(hn::Set(d, 0.0625f)) {}
  HWY_INLINE Decoder times(D d, float scale) const { return Decoder(hn::Set(d, scale * 0.0625f)); }
  HWY_INLINE hn::Vec<D> operator()(D d, IntOf<D> code) const {
    const hn::RebindToSigned<D> di;
    return hn::Mul(hn::ConvertTo(d, hn::Add(code, hn::Set(di, 1))), step_);
  }

 private:
  explicit Decoder(hn::Vec<D> step) : step_(step) {}
  hn::Vec<D> step_;
};

template <class D>
class Encoder<D, LinearMap4> {
 public:
  static constexpr int zero = LinearMap4::zero;
  Encoder(D, const LinearMap4&) {}
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> value) const {
    return hn::Min(hn::MulAdd(value, hn::Set(d, 16), hn::Set(d, -1)), hn::Set(d, 15));
  }
};

using FloatTag = hn::ScalableTag<float>;
using Vector = hn::Vec<FloatTag>;
using Largest = hn::Vec<hn::RebindToUnsigned<FloatTag>>;

HWY_INLINE IntOf<FloatTag> load_codes(const uint8_t* from) {
  return hn::PromoteTo(hn::RebindToSigned<FloatTag>(), hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), from));
}

/// Updates the largest magnitude. As integers, the bits of magnitudes have the same order, and non-finite values are
/// largest.
HWY_INLINE void take_largest(Largest& largest, hn::Vec<FloatTag> value) {
  largest = hn::Max(largest, hn::BitCast(hn::RebindToUnsigned<FloatTag>(), hn::Abs(value)));
}

HWY_INLINE float largest_lane(Largest largest) {
  const hn::RebindToUnsigned<FloatTag> d;
  return std::bit_cast<float>(static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest))));
}

/// Number of elements that are decoded, updated and encoded together. Their arrays, those of the next window and the
/// intermediate values fit in the L1 cache.
constexpr size_t low_bit_window = 512;

#if HWY_TARGET <= HWY_AVX3
/// Stores sixty-four codes from four vectors relative to the code of zero. Packing saturates values below 0.
HWY_INLINE void store_codes(Vector a, Vector b, Vector c, Vector d, int zero, uint8_t* to) {
  const auto code = [zero](Vector place) HWY_ATTR {
    if (zero == 0) return _mm512_cvtps_epi32(place.raw);
    // Ties go to the even code, not to the even relative value.
    const __m512 sum = _mm512_add_ps(place.raw, _mm512_set1_ps(integers + static_cast<float>(zero)));
    return _mm512_sub_epi32(_mm512_castps_si512(sum), _mm512_set1_epi32(std::bit_cast<int32_t>(integers)));
  };
  const __m512i first = _mm512_packs_epi32(code(a), code(b)), second = _mm512_packs_epi32(code(c), code(d));
  // Packing interleaves 16-byte lanes; this restores the order of the groups of four.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(first, second)));
}
#endif

/// Encodes the new values of a block. Hardware prefetching stops meanwhile, so it prefetches explicitly.
/// Params: ahead – weights that are used later, of which this call prefetches 1 / Share of a block. Prefetches are
///         spread over the computation, because too many at once delay each other.
template <int Share, class Encode>
HWY_INLINE void encode_block(const Encode& encode, const float* values, float scale, size_t n, uint8_t* codes,
                             const float* ahead) {
  const FloatTag d;
  const hn::Rebind<uint8_t, FloatTag> bytes;
  const auto inverse = hn::Set(d, scale > 0 ? 1 / scale : 0);
  const auto place = [&](size_t i) HWY_ATTR {
    hwy::Prefetch(ahead + i / Share);
    return encode(d, hn::Mul(hn::Load(d, values + i), inverse));
  };
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  for (; i + 64 <= n; i += 64) {
    store_codes(place(i), place(i + 16), place(i + 32), place(i + 48), Encode::zero, codes + i);
    hwy::Prefetch(codes + i + low_bit_window);
  }
#endif
  for (; i < n; i += hn::Lanes(d)) {
    hwy::Prefetch(codes + i + low_bit_window);
    const auto nearest = hn::Max(hn::Add(place(i), hn::Set(d, integers + Encode::zero)), hn::Set(d, integers));
    hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(hn::RebindToUnsigned<FloatTag>(), nearest)), bytes, codes + i);
  }
}

struct LowBitWindow {
  alignas(64) float old_p[low_bit_window], s[2][low_bit_window];
  alignas(64) uint8_t bytes[2][low_bit_window];
  float* p;
  const float* g;
  uint8_t* codes[2];  ///< `bytes`, or the codes in memory
  float* scale[2];    ///< scale of the window's first block
};

template <class Rule, class Width>
class LowBitStep {
 public:
  static constexpr int states = std::is_same_v<Rule, AdamRule> ? 2 : 1;

  explicit LowBitStep(const Rule& rule)
      : rule_(rule),
        formula_(FloatTag(), rule),
        decode_first_(FloatTag(), Width::first),
        decode_second_(FloatTag(), Width::second),
        encode_first_(FloatTag(), Width::first),
        encode_second_(FloatTag(), Width::second) {}

  /// Params: n – a multiple of the vector length
  HWY_INLINE void operator()(LowBitWindow& w, size_t n) const {
    for (size_t at = 0; at < n; at += Width::block) {
      const size_t count = std::min<size_t>(Width::block, n - at);
      if (usual() ? !update<false, true>(w, at, count) : !update<false, false>(w, at, count))
        update<true, false>(w, at, count);
    }
    // Encodes after all updates, so that no instruction waits for the largest magnitude of a block.
    for (size_t at = 0; at < n; at += Width::block) {
      const size_t count = std::min<size_t>(Width::block, n - at), block = at / Width::block;
      const float* const ahead = w.p + at + low_bit_window;
      encode_block<states>(encode_first_, w.s[0] + at, w.scale[0][block], count, w.codes[0] + at, ahead);
      if (states == 2)
        encode_block<states>(encode_second_, w.s[1] + at, w.scale[1][block], count, w.codes[1] + at, ahead + count / 2);
    }
  }

 private:
  using First = std::remove_const_t<decltype(Width::first)>;
  using Second = std::remove_const_t<decltype(Width::second)>;

  /// Computes new parameters, state and scales of a block. Returns false if a value is not finite. Then the call must
  /// be repeated with Careful, which leaves those elements unchanged.
  /// Params: Usual – the result of usual()
  template <bool Careful, bool Usual>
  bool update(LowBitWindow& w, size_t at, size_t n) const {
    const FloatTag d;
    const hn::RebindToUnsigned<FloatTag> du;
    float& scale0 = w.scale[0][at / Width::block];
    float& scale1 = w.scale[states - 1][at / Width::block];
    const auto decode_first = decode_first_.times(d, scale0 * forgets(0)), as_first = decode_first_.times(d, scale0);
    const auto decode_second = decode_second_.times(d, scale1 * forgets(1)),
               as_second = decode_second_.times(d, scale1);
    auto largest0 = hn::Zero(du), largest1 = hn::Zero(du);
    for (size_t i = at; i < at + n; i += hn::Lanes(d)) {
      hwy::Prefetch(w.g + i + low_bit_window);
      const auto old_p = Careful ? hn::Load(d, w.old_p + i) : hn::LoadU(d, w.p + i);
      if (!Careful) hn::Store(old_p, d, w.old_p + i);
      const auto old0 = decode_first(d, load_codes(w.codes[0] + i));
      const auto old1 = states == 2 ? decode_second(d, load_codes(w.codes[1] + i)) : hn::Zero(d);
      auto p = old_p, new0 = old0, new1 = old1;
      apply<Usual>(p, hn::LoadU(d, w.g + i), new0, new1);
      if constexpr (Careful) {
        const auto finite = hn::And(hn::IsFinite(new0), hn::IsFinite(new1));
        p = hn::IfThenElse(finite, p, old_p);
        new0 = hn::IfThenElse(finite, new0, as_first(d, load_codes(w.codes[0] + i)));
        if (states == 2) new1 = hn::IfThenElse(finite, new1, as_second(d, load_codes(w.codes[1] + i)));
      }
      hn::StoreU(p, d, w.p + i);
      hn::Store(new0, d, w.s[0] + i);
      take_largest(largest0, new0);
      if constexpr (states == 2) {
        hn::Store(new1, d, w.s[1] + i);
        largest1 = hn::Max(largest1, hn::BitCast(du, new1));  // never negative
      }
    }
    const float first = largest_lane(largest0), second = states == 2 ? largest_lane(largest1) : 0;
    if (!Careful && !(std::isfinite(first) && std::isfinite(second))) return false;
    scale0 = usable_scale(first);
    if (states == 2) scale1 = usable_scale(second);
    return true;
  }

  /// Factor by which the decoder multiplies a moment. It saves one multiplication in the formula.
  float forgets(int moment) const {
    if constexpr (states == 2) return static_cast<float>(moment == 0 ? rule_.beta1 : rule_.beta2);
    return 1;
  }
  bool usual() const {
    if constexpr (states == 2) return formula_.usual();
    return false;
  }
  template <bool Usual>
  HWY_INLINE void apply(Vector& p, Vector g, Vector& m, Vector& v) const {
    auto none = hn::Zero(FloatTag());
    if constexpr (states == 2 && Usual) {
      formula_.apply_usual(p, g, m, v);
    } else if constexpr (states == 2) {
      formula_.template apply<2, true>(p, g, m, v, none);
    } else {
      formula_.template apply<1>(p, g, m, v, none);
    }
  }

  const Rule& rule_;
  VectorFormula<FloatTag, Rule> formula_;
  Decoder<FloatTag, First> decode_first_;
  Decoder<FloatTag, Second> decode_second_;
  Encoder<FloatTag, First> encode_first_;
  Encoder<FloatTag, Second> encode_second_;
};

// --- conversion between packed codes and bytes

/// The codes of a window as bytes: in place if they are bytes and the window is whole, otherwise in `bytes`.
template <class Width>
uint8_t* open_codes(uint8_t* codes, uint8_t* bytes, size_t n) {
  if constexpr (std::is_same_v<Width, State8>) {
    if (n == low_bit_window) return codes;
    std::memcpy(bytes, codes, n);
  } else {
    const hn::CappedTag<uint8_t, Width::block_bytes> d;
    const size_t blocks = (n + Width::block - 1) / Width::block;
    for (size_t b = 0; b < blocks; ++b) {
      uint8_t* const to = bytes + b * Width::block;
      for (size_t j = 0; j < Width::block_bytes; j += hn::Lanes(d)) {
        const auto both = hn::LoadU(d, codes + b * Width::block_bytes + j);
        hn::StoreU(hn::And(both, hn::Set(d, 15)), d, to + j);
        hn::StoreU(hn::ShiftRight<4>(both), d, to + j + Width::block_bytes);
      }
    }
  }
  return bytes;
}

template <class Width>
void close_codes(uint8_t* codes, uint8_t* bytes, size_t n) {
  if constexpr (std::is_same_v<Width, State8>) {
    if (n != low_bit_window) std::memcpy(codes, bytes, n);
  } else {
    const hn::CappedTag<uint8_t, Width::block_bytes> d;
    const size_t blocks = (n + Width::block - 1) / Width::block;
    std::fill(bytes + n, bytes + blocks * Width::block, uint8_t{0});
    for (size_t b = 0; b < blocks; ++b) {
      const uint8_t* const from = bytes + b * Width::block;
      for (size_t j = 0; j < Width::block_bytes; j += hn::Lanes(d)) {
        const auto upper = hn::ShiftLeft<4>(hn::LoadU(d, from + j + Width::block_bytes));
        hn::StoreU(hn::Or(upper, hn::LoadU(d, from + j)), d, codes + b * Width::block_bytes + j);
      }
    }
  }
}

/// `values`, or a copy padded with zeros to a whole vector.
HWY_INLINE float* whole_vectors(float* values, float* copy, size_t n) {
  if (n % hn::Lanes(FloatTag()) == 0) return values;
  std::memcpy(copy, values, n * sizeof(float));
  std::fill(copy + n, copy + low_bit_window, 0.0f);
  return copy;
}

template <class Rule, class Width>
void step_windows(const StepTensor<Rule>& t, StepTypes types, size_t begin, size_t end) {
  static_assert(low_bit_window % Width::block == 0);
  using Step = LowBitStep<Rule, Width>;
  const Step step(t.rule);
  void* const weights = t.master ? t.master : t.param;
  const Type weight_type = t.master ? Type::f32 : types.param;
  Window p, g;
  alignas(64) float padded[2][low_bit_window];
  LowBitWindow w;
  for (size_t at = begin; at < end; at += low_bit_window) {
    const size_t n = std::min(low_bit_window, end - at), lanes = hn::Lanes(FloatTag());
    float* const values = p.open(weights, weight_type, at, n);
    w.p = whole_vectors(values, padded[0], n);
    w.g = whole_vectors(g.open(t.grad, types.grad, at, n), padded[1], n);
    uint8_t* codes[2];
    for (int k = 0; k < Step::states; ++k) {
      codes[k] = static_cast<uint8_t*>(t.state[k]) + at / Width::block * Width::block_bytes;
      w.scale[k] = t.scale[k] + at / Width::block;
      w.codes[k] = open_codes<Width>(codes[k], w.bytes[k], n);
      // Padding has the code of zero or of a value that shrinks towards zero, so it does not increase a scale.
      if (n % lanes) std::fill(w.bytes[k] + n, w.bytes[k] + low_bit_window, k == 0 ? Width::first.zero : 0);
    }
    step(w, (n + lanes - 1) / lanes * lanes);
    for (int k = 0; k < Step::states; ++k) close_codes<Width>(codes[k], w.codes[k], n);
    if (w.p != values) std::memcpy(values, w.p, n * sizeof(float));
    Window::write(values, t.param, types.param, at, n, {types.stochastic, t.rounding_seed});
  }
}

template <class Rule>
void step_width(const StepTensor<Rule>& t, StepTypes types, size_t begin, size_t end) {
  types.low_bit == LowBit::int8 ? step_windows<Rule, State8>(t, types, begin, end)
                                : step_windows<Rule, State4>(t, types, begin, end);
}

void low_bit_sgd(const StepTensor<SgdRule>& t, StepTypes types, size_t begin, size_t end) {
  step_width(t, types, begin, end);
}
void low_bit_adam(const StepTensor<AdamRule>& t, StepTypes types, size_t begin, size_t end) {
  step_width(t, types, begin, end);
}
void low_bit_lion(const StepTensor<LionRule>& t, StepTypes types, size_t begin, size_t end) {
  step_width(t, types, begin, end);
}

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels::cpu {

HWY_EXPORT(low_bit_sgd);
HWY_EXPORT(low_bit_adam);
HWY_EXPORT(low_bit_lion);

void step_low_bit(std::span<const StepTensor<SgdRule>> tensors, StepTypes types) {
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(low_bit_sgd));
}
void step_low_bit(std::span<const StepTensor<AdamRule>> tensors, StepTypes types) {
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(low_bit_adam));
}
void step_low_bit(std::span<const StepTensor<LionRule>> tensors, StepTypes types) {
  step_chunks(tensors, types, HWY_DYNAMIC_DISPATCH(low_bit_lion));
}

}  // namespace bellows::kernels::cpu
#endif
