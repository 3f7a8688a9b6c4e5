// Converts values of type float, double, BFloat16 or Half to vectors of the accumulation type. This header is included
// once per instruction set.
#if defined(BELLOWS_KERNELS_VALUES) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_VALUES
#undef BELLOWS_KERNELS_VALUES
#else
#define BELLOWS_KERNELS_VALUES
#endif

#include <c10/core/ScalarType.h>
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The type in which values of type T are computed.
template <class T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Loads a full vector from unaligned memory.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_values(D d, const T* from) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    return hn::LoadU(d, from);
  }
}

/// Stores a full vector to unaligned memory and rounds to nearest even. Highway's DemoteTo for bfloat16_t truncates
/// instead.
template <class D, class T>
HWY_INLINE void store_values(D d, hn::Vec<D> values, T* to) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::BitCast(d32, values);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(values));
    const auto result = hn::ShiftRight<16>(hn::IfThenElse(is_nan, hn::Set(d32, 0x7fc00000), rounded));
    hn::StoreU(hn::TruncateTo(d16, result), d16, reinterpret_cast<uint16_t*>(to));
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, values), d16, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    hn::StoreU(values, d, to);
  }
}

/// Columns that fill a whole vector.
struct Whole {
  template <class D, class T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    return load_values(d, from);
  }
  template <class D, class T>
  HWY_INLINE void store(D d, hn::Vec<D> values, T* to) const {
    store_values(d, values, to);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> only(D, hn::Vec<D> values) const {
    return values;
  }
};

/// The last `count` columns, which do not fill a vector. The lanes after them are zero and are not stored.
struct Part {
  size_t count;

  template <class D, class T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    alignas(64) unsigned char buffer[hn::MaxLanes(D()) * sizeof(T)] = {};
    std::memcpy(buffer, from, count * sizeof(T));
    return load_values(d, reinterpret_cast<const T*>(buffer));
  }
  template <class D, class T>
  HWY_INLINE void store(D d, hn::Vec<D> values, T* to) const {
    alignas(64) unsigned char buffer[hn::MaxLanes(D()) * sizeof(T)];
    store_values(d, values, reinterpret_cast<T*>(buffer));
    std::memcpy(to, buffer, count * sizeof(T));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> only(D d, hn::Vec<D> values) const {
    return hn::IfThenElseZero(hn::FirstN(d, count), values);
  }
};

/// Calls action(T*) with the C++ type of `dtype`.
/// Params: dtype – must be Double, BFloat16, Half or Float
template <class Action>
HWY_INLINE void with_values(c10::ScalarType dtype, Action action) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return action(static_cast<double*>(nullptr));
    case c10::ScalarType::BFloat16:
      return action(static_cast<c10::BFloat16*>(nullptr));
    case c10::ScalarType::Half:
      return action(static_cast<c10::Half*>(nullptr));
    default:
      return action(static_cast<float*>(nullptr));
  }
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BELLOWS_KERNELS_VALUES
