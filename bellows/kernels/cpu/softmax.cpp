// Softmax statistics and gradients, compiled once per instruction set that Highway supports; the best one is chosen at
// run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/softmax.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
// clang-format on

#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// e^x for x up to about 0. Returns NaN for NaN; Highway's function treats NaN as a very small number.
template <class D>
HWY_INLINE hn::Vec<D> exp_or_nan(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

template <class T>
HWY_INLINE Accumulate<T> max_of(const T* x, size_t columns) {
  const hn::ScalableTag<Accumulate<T>> d;
  const auto lowest = hn::Set(d, -HUGE_VAL);
  auto m0 = lowest, m1 = lowest;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= columns; i += 2 * lanes) {
    m0 = hn::Max(m0, Whole{}.load(d, x + i));
    m1 = hn::Max(m1, Whole{}.load(d, x + i + lanes));
  }
  for_columns(d, columns - i, [&](auto part, size_t j) HWY_ATTR {
    const auto values = part.load(d, x + i + j);
    if constexpr (std::is_same_v<decltype(part), Part>) {
      m0 = hn::Max(m0, hn::IfThenElse(hn::FirstN(d, part.count), values, lowest));
    } else {
      m0 = hn::Max(m0, values);
    }
  });
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
}

template <class T>
void statistics_row(const SoftmaxStatistics& args, int64_t row) {
  using A = Accumulate<T>;
  const hn::ScalableTag<A> d;
  const SoftmaxRows& scores = args.scores;
  const T* x = static_cast<const T*>(scores.logits) + row * scores.stride;
  const auto columns = static_cast<size_t>(scores.columns);
  A& max = static_cast<A*>(args.max)[row];
  A& sum = static_cast<A*>(args.sum)[row];
  const A before = max, largest = HWY_MAX(before, max_of(x, columns));
  if (largest != static_cast<A>(-HUGE_VAL)) {
    if (before != static_cast<A>(-HUGE_VAL)) sum *= std::exp(before - largest);
    const auto shift = hn::Set(d, largest);
    sum += sum_of_columns(d, columns, [&](auto lanes, size_t i, auto partial) HWY_ATTR {
      return hn::Add(partial, lanes.only(d, exp_or_nan(d, hn::Sub(lanes.load(d, x + i), shift))));
    });
    max = largest;
  }
  if (args.total) {
    static_cast<A*>(args.total)[row] += sum_of_columns(d, columns, [&](auto lanes, size_t i, auto partial) HWY_ATTR {
      return hn::Add(partial, lanes.load(d, x + i));
    });
  }
  const int64_t target = scores.target[row] - scores.first;
  if (target >= 0 && target < scores.columns) static_cast<A*>(args.picked)[row] = static_cast<A>(x[target]);
}

template <class T>
void gradient_row(const SoftmaxGradient& args, int64_t row) {
  using A = Accumulate<T>;
  const hn::ScalableTag<A> d;
  const SoftmaxRows& scores = args.scores;
  const T* x = static_cast<const T*>(scores.logits) + row * scores.stride;
  T* gradient = static_cast<T*>(args.gradient) + row * scores.stride;
  const A scale = static_cast<const A*>(args.scale)[row], log_sum = static_cast<const A*>(args.log_sum)[row];
  const auto columns = static_cast<size_t>(scores.columns);
  if (scale == 0) {
    std::fill_n(gradient, columns, T(0));
    return;
  }
  const int64_t target = scores.target[row] - scores.first;
  const bool here = target >= 0 && target < scores.columns;
  const A picked = here ? static_cast<A>(x[target]) : A(0);  // read before the gradient overwrites it
  const auto shift = hn::Set(d, log_sum), off = hn::Set(d, static_cast<A>(args.off)), factor = hn::Set(d, scale);
  for_columns(d, columns, [&](auto lanes, size_t i) HWY_ATTR {
    const auto p = exp_or_nan(d, hn::Sub(lanes.load(d, x + i), shift));
    lanes.store(d, hn::Mul(hn::Sub(p, off), factor), gradient + i);
  });
  if (here) {
    const A p = std::exp(picked - log_sum) - static_cast<A>(args.off) - static_cast<A>(args.on);
    gradient[target] = static_cast<T>(p * scale);
  }
}

void softmax_statistics_row(const SoftmaxStatistics& args, int64_t row) {
  with_values(args.scores.dtype, [&](auto* type) { statistics_row<std::remove_pointer_t<decltype(type)>>(args, row); });
}

void softmax_gradient_row(const SoftmaxGradient& args, int64_t row) {
  with_values(args.scores.dtype, [&](auto* type) { gradient_row<std::remove_pointer_t<decltype(type)>>(args, row); });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(softmax_statistics_row);
HWY_EXPORT(softmax_gradient_row);

namespace {

/// Calls action(row) for all rows; short rows share a task.
template <class Action>
void for_rows(const SoftmaxRows& scores, Action action) {
  constexpr int64_t values = 16384;
  const int64_t rows = std::max<int64_t>(1, values / std::max<int64_t>(1, scores.columns));
  parallel_chunks((scores.rows + rows - 1) / rows, [&](int64_t i) {
    for (int64_t row = i * rows; row < std::min(scores.rows, (i + 1) * rows); ++row) action(row);
  });
}

}  // namespace

void softmax_statistics(const SoftmaxStatistics& args) {
  for_rows(args.scores, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(softmax_statistics_row)(args, row); });
}

void softmax_gradient(const SoftmaxGradient& args) {
  for_rows(args.scores, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(softmax_gradient_row)(args, row); });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
