// Loops over the values of a row. This header is included once per instruction set.
#if defined(BELLOWS_KERNELS_COLUMNS) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_COLUMNS
#undef BELLOWS_KERNELS_COLUMNS
#else
#define BELLOWS_KERNELS_COLUMNS
#endif

#include <hwy/highway.h>

#include "bellows/kernels/cpu/values_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// Calls step(lanes, i) for all columns, one vector at a time.
template <class D, class Step>
HWY_INLINE void for_columns(D d, size_t columns, Step step) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= columns; i += lanes) step(Whole{}, i);
  if (i < columns) step(Part{columns - i}, i);
}

/// Adds up step(lanes, i, sum) over the columns in four independent partial sums. Lanes after the last column must add
/// 0.
template <class D, class Step>
HWY_INLINE hn::TFromD<D> sum_of_columns(D d, size_t columns, Step step) {
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= columns; i += 4 * lanes) {
    s0 = step(Whole{}, i, s0);
    s1 = step(Whole{}, i + lanes, s1);
    s2 = step(Whole{}, i + 2 * lanes, s2);
    s3 = step(Whole{}, i + 3 * lanes, s3);
  }
  for (; i + lanes <= columns; i += lanes) s0 = step(Whole{}, i, s0);
  if (i < columns) s1 = step(Part{columns - i}, i, s1);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BELLOWS_KERNELS_COLUMNS
