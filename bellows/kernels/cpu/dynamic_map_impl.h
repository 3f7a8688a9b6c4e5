// Codes of low-bit state (dynamic_map.h) to and from floats, a vector at a time. Included once for each instruction set.
#if defined(BELLOWS_KERNELS_DYNAMIC_MAP) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_DYNAMIC_MAP
#undef BELLOWS_KERNELS_DYNAMIC_MAP
#else
#define BELLOWS_KERNELS_DYNAMIC_MAP
#endif

#include <hwy/highway.h>

#include "bellows/kernels/dynamic_map.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using IntOf = hn::Vec<hn::RebindToSigned<D>>;

/// Added to a small number, it leaves its nearest integer in the low bits.
constexpr float integers = 0x1.8p23f;

/// Sixteen floats, found by the lowest four bits of an index, in registers where those are wide enough.
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
  /// With all values multiplied: without a way through memory, which would wait for what is still to be written.
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
      return hn::TableLookupLanes(low_, hn::IndicesFromVec(d, index));  // looks at four bits only
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
  // A float's bits shifted by 23 are its exponent + 127, of which the tables see four bits. Four times Y keeps signed
  // decades off 0, which is what the bits of a zero say.
  static constexpr float stretch = Signed ? 4 : 1;
  static constexpr int first_index = 127 + (Signed ? 2 : 0) + Map::exponent_of_one - (Decades + 1);

 public:
  Decoder(D d, const Map& map) : offset_(d, map.offset, first_index), slope_(d, map.slope, first_index) {}
  /// For a block with that scale.
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

/// Floats of at most 1 in magnitude to codes. The decade is guessed from the bits, which are 2^23 · (log2(x) + 127) to
/// within 0.09: the line below is at most one decade too low, and one comparison with where the next begins settles it.
template <class D, int Decades, bool Signed>
class Encoder<D, DynamicMap<Decades, Signed>> {
  using Map = DynamicMap<Decades, Signed>;

 public:
  Encoder(D d, const Map& map)
      : threshold_(d, map.threshold), slope_(d, map.code_slope), offset_(d, map.code_offset), limit_(d, map.limit) {}
  static constexpr int zero = Map::zero;
  /// The code, beside that of zero and not yet rounded; below all codes: the first.
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> value) const {
    const hn::RebindToSigned<D> di;
    const auto least = hn::Set(d, Decades == 7 ? 6e-8f : 7e-4f);  // zero, and the guess is 0
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

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per instruction set
