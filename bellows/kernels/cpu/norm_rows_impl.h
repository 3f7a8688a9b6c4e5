// The row loops of norm.cpp. Included once for each instruction set.
#if defined(BELLOWS_KERNELS_NORM_ROWS) == defined(HWY_TARGET_TOGGLE)
#ifdef BELLOWS_KERNELS_NORM_ROWS
#undef BELLOWS_KERNELS_NORM_ROWS
#else
#define BELLOWS_KERNELS_NORM_ROWS
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

struct Moments {
  double mean, variance;
};

/// Two passes over each block while it is in the cache; blocks are combined by Chan's formula.
template <class T>
HWY_INLINE Moments moments_of(const T* x, size_t columns) {
  const hn::ScalableTag<Accumulate<T>> d;
  constexpr size_t block = 4096;
  double mean = 0, squares = 0;
  for (size_t start = 0; start < columns; start += block) {
    const size_t count = HWY_MIN(block, columns - start);
    const T* values = x + start;
    const double block_mean = sum_of_columns(d, count,
                                             [&](auto lanes, size_t i, auto sum)
                                                 HWY_ATTR { return hn::Add(sum, lanes.load(d, values + i)); }) /
                              static_cast<double>(count);
    const auto center = hn::Set(d, static_cast<Accumulate<T>>(block_mean));
    squares += sum_of_columns(d, count, [&](auto lanes, size_t i, auto sum) HWY_ATTR {
      const auto deviation = lanes.only(d, hn::Sub(lanes.load(d, values + i), center));
      return hn::MulAdd(deviation, deviation, sum);
    });
    const double share = static_cast<double>(count) / static_cast<double>(start + count);
    squares += (block_mean - mean) * (block_mean - mean) * static_cast<double>(start) * share;
    mean += (block_mean - mean) * share;
  }
  return {mean, squares / static_cast<double>(HWY_MAX(columns, size_t{1}))};
}

template <class T>
HWY_INLINE double mean_square_of(const T* x, size_t columns) {
  const hn::ScalableTag<Accumulate<T>> d;
  constexpr size_t block = 4096;
  double squares = 0;
  for (size_t start = 0; start < columns; start += block) {
    squares += sum_of_columns(d, HWY_MIN(block, columns - start), [&](auto lanes, size_t i, auto sum) HWY_ATTR {
      const auto value = lanes.load(d, x + start + i);
      return hn::MulAdd(value, value, sum);
    });
  }
  return squares / static_cast<double>(HWY_MAX(columns, size_t{1}));
}

/// How many values ahead the last loop over a row fetches. The processor's own prefetchers stop at the end of a page,
/// which is after one or two rows of usual length; rows that fill a cache gain nothing.
HWY_INLINE size_t prefetch_distance(size_t columns) {
  return columns <= 16384 ? 2 * columns : 0;
}

template <class T>
void forward_rows(const NormForward& args, int64_t begin, int64_t end) {
  using A = Accumulate<T>;
  const hn::ScalableTag<A> d;
  const auto columns = static_cast<size_t>(args.columns), ahead = prefetch_distance(columns);
  const auto* weight = static_cast<const A*>(args.weight);
  const auto* bias = static_cast<const A*>(args.bias);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.columns;
    T* y = static_cast<T*>(args.y) + row * args.columns;
    const Moments moments = args.mean ? moments_of(x, columns) : Moments{0, mean_square_of(x, columns)};
    const auto rstd = static_cast<A>(1 / std::sqrt(moments.variance + args.eps));
    if (args.mean) static_cast<A*>(args.mean)[row] = static_cast<A>(moments.mean);
    static_cast<A*>(args.rstd)[row] = rstd;
    const auto center = hn::Set(d, static_cast<A>(moments.mean)), scale = hn::Set(d, rstd);
    for_columns(d, columns, [&](auto lanes, size_t i) HWY_ATTR {
      hwy::Prefetch(x + ahead + i);
      const auto deviation = hn::Sub(lanes.load(d, x + i), center);
      const auto factor = hn::Mul(scale, lanes.load(d, weight + i));
      lanes.store(d, hn::MulAdd(deviation, factor, lanes.load(d, bias + i)), y + i);
    });
  }
}

/// dx of the rows, and their share of the gradients of weight and bias in `partial` [2, columns]. The first loop over a
/// row takes the sums that dx needs and adds to the shares, the second writes dx.
template <class T>
void backward_rows(const NormBackward& args, int64_t begin, int64_t end, Accumulate<T>* partial) {
  using A = Accumulate<T>;
  const hn::ScalableTag<A> d;
  const auto columns = static_cast<size_t>(args.columns), ahead = prefetch_distance(columns);
  const auto* weight = static_cast<const A*>(args.weight);
  const auto* mean = static_cast<const A*>(args.mean);
  A* dweight = partial;
  A* dbias = partial + columns;
  std::fill_n(partial, 2 * columns, A(0));
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.columns;
    const T* dy = static_cast<const T*>(args.dy) + row * args.columns;
    const auto scale = hn::Set(d, static_cast<const A*>(args.rstd)[row]);
    const auto center = hn::Set(d, mean ? mean[row] : A(0));
    auto sum_g = hn::Zero(d), sum_gx = hn::Zero(d);
    for_columns(d, columns, [&](auto lanes, size_t i) HWY_ATTR {
      const auto xhat = hn::Mul(hn::Sub(lanes.load(d, x + i), center), scale);
      const auto gradient = lanes.load(d, dy + i);
      const auto g = hn::Mul(gradient, lanes.load(d, weight + i));
      sum_g = hn::Add(sum_g, g);
      sum_gx = hn::MulAdd(g, xhat, sum_gx);
      lanes.store(d, hn::MulAdd(gradient, xhat, lanes.load(d, dweight + i)), dweight + i);
      lanes.store(d, hn::Add(gradient, lanes.load(d, dbias + i)), dbias + i);
    });
    if (!args.dx) continue;
    T* dx = static_cast<T*>(args.dx) + row * args.columns;
    const auto inverse = hn::Set(d, A(1) / static_cast<A>(columns));
    const auto mean_g = mean ? hn::Mul(hn::SumOfLanes(d, sum_g), inverse) : hn::Zero(d);
    const auto mean_gx = hn::Mul(hn::SumOfLanes(d, sum_gx), inverse);
    for_columns(d, columns, [&](auto lanes, size_t i) HWY_ATTR {
      hwy::Prefetch(x + ahead + i);
      hwy::Prefetch(dy + ahead + i);
      const auto xhat = hn::Mul(hn::Sub(lanes.load(d, x + i), center), scale);
      const auto gradient = lanes.load(d, dy + i);
      const auto g = hn::Mul(gradient, lanes.load(d, weight + i));
      lanes.store(d, hn::Mul(scale, hn::NegMulAdd(xhat, mean_gx, hn::Sub(g, mean_g))), dx + i);
    });
  }
}

template <class A>
void sum_chunks(const NormBackward& args, const A* partial, int64_t chunks, int64_t begin, int64_t end) {
  const hn::ScalableTag<A> d;
  for (int which = 0; which < 2; ++which) {
    A* out = static_cast<A*>(which ? args.dbias : args.dweight);
    if (!out) continue;
    const A* first = partial + which * args.columns + begin;
    for_columns(d, static_cast<size_t>(end - begin), [&](auto lanes, size_t i) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum = hn::Add(sum, lanes.load(d, first + chunk * 2 * args.columns + i));
      }
      lanes.store(d, sum, out + begin + i);
    });
  }
}

void norm_forward_rows(const NormForward& args, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) { forward_rows<std::remove_pointer_t<decltype(type)>>(args, begin, end); });
}

void norm_backward_rows(const NormBackward& args, int64_t begin, int64_t end, void* partial) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    backward_rows<T>(args, begin, end, static_cast<Accumulate<T>*>(partial));
  });
}

void norm_sum_chunks(const NormBackward& args, const void* partial, int64_t chunks, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    using A = Accumulate<std::remove_pointer_t<decltype(type)>>;
    sum_chunks(args, static_cast<const A*>(partial), chunks, begin, end);
  });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BELLOWS_KERNELS_NORM_ROWS
