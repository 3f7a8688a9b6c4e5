// The row loops of dropout_norm.cpp. Included once for each instruction set.
#if defined(BELLOWS_KERNELS_DROPOUT_ROWS) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_DROPOUT_ROWS
#undef BELLOWS_KERNELS_DROPOUT_ROWS
#else
#define BELLOWS_KERNELS_DROPOUT_ROWS
#endif

#include <hwy/highway.h>

#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/dropout_hash_impl.h"
#include "bellows/kernels/dropout_norm.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// The values of a row that stay, times 1 / (1 − p).
template <class D>
class DropoutOfRow {
 public:
  using A = hn::TFromD<D>;

  DropoutOfRow(const DropoutMask& dropout, int64_t row)
      : keys_(dropout.seed, row),
        threshold_(dropout_threshold(dropout.p)),
        scale_(static_cast<A>(1 / (1 - dropout.p))) {}

  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> values, size_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<int32_t, D> s32;
    auto h = hn::Iota(d32, static_cast<uint32_t>(column) + keys_.first);
    h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(d32, dropout_multiplier_1));
    h = hn::Mul(hn::Xor(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(d32, keys_.second)),
                hn::Set(d32, dropout_multiplier_2));
    h = hn::ShiftRight<1>(hn::Xor(h, hn::ShiftRight<15>(h)));
    const auto kept = hn::Mul(values, hn::Set(d, scale_));
    if constexpr (std::is_same_v<A, double>) {
      const hn::Rebind<int64_t, D> s64;
      const auto wide = hn::PromoteTo(s64, hn::BitCast(s32, h));
      return hn::IfThenZeroElse(hn::RebindMask(d, hn::Lt(wide, hn::Set(s64, threshold_))), kept);
    } else {
      const auto dropped = hn::Lt(hn::BitCast(s32, h), hn::Set(s32, threshold_));
      return hn::IfThenZeroElse(hn::RebindMask(d, dropped), kept);
    }
  }

 private:
  DropoutRow keys_;
  int32_t threshold_;
  A scale_;
};

template <class T>
void dropout_add_row(const DropoutNormForward& args, int64_t row) {
  const hn::ScalableTag<Accumulate<T>> d;
  const DropoutOfRow<decltype(d)> dropout(args.dropout, row);
  const int64_t start = row * args.norm.columns;
  const T* x = static_cast<const T*>(args.x) + start;
  const T* residual = static_cast<const T*>(args.residual) + start;
  T* sum = static_cast<T*>(args.sum) + start;
  for_columns(d, static_cast<size_t>(args.norm.columns), [&](auto lanes, size_t i) HWY_ATTR {
    lanes.store(d, hn::Add(lanes.load(d, residual + i), dropout(d, lanes.load(d, x + i), i)), sum + i);
  });
}

/// Adds the sum's own gradient to what the norm gave, and drops of that what the forward pass dropped.
template <class T>
void dropout_gradient_row(const DropoutNormBackward& args, int64_t row) {
  const hn::ScalableTag<Accumulate<T>> d;
  const DropoutOfRow<decltype(d)> dropout(args.dropout, row);
  const int64_t start = row * args.norm.columns;
  T* gradient = static_cast<T*>(args.norm.dx) + start;
  const T* own = args.dsum ? static_cast<const T*>(args.dsum) + start : nullptr;
  T* dx = args.dx ? static_cast<T*>(args.dx) + start : nullptr;
  for_columns(d, static_cast<size_t>(args.norm.columns), [&](auto lanes, size_t i) HWY_ATTR {
    auto values = lanes.load(d, gradient + i);
    if (own) {
      values = hn::Add(values, lanes.load(d, own + i));
      lanes.store(d, values, gradient + i);
    }
    if (dx) lanes.store(d, dropout(d, values, i), dx + i);
  });
}

void dropout_add_rows(const DropoutNormForward& args, int64_t begin, int64_t end) {
  with_values(args.norm.dtype, [&](auto* type) {
    for (int64_t row = begin; row < end; ++row) dropout_add_row<std::remove_pointer_t<decltype(type)>>(args, row);
  });
}

void dropout_gradient_rows(const DropoutNormBackward& args, int64_t begin, int64_t end) {
  with_values(args.norm.dtype, [&](auto* type) {
    for (int64_t row = begin; row < end; ++row) dropout_gradient_row<std::remove_pointer_t<decltype(type)>>(args, row);
  });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BELLOWS_KERNELS_DROPOUT_ROWS
