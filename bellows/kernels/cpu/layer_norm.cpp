// LayerNorm and RMSNorm, alone and after dropout and residual, for float, double, bf16 and fp16. Compiled once per
// instruction set that Highway supports; the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/layer_norm.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/dropout_hash.h"
#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/layer_norm.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// The values of a row that dropout keeps, times 1 / (1 − p).
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

/// Adds the sum's own gradient to that of the norm, and applies the dropout mask of the forward pass.
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

/// Number of values that the last loop over a row prefetches. Hardware prefetchers stop at the end of a page, that is,
/// after one or two rows of usual length. Rows that fill a cache gain nothing.
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

/// dx of the rows, and their partial gradients of weight and bias in `partial` [2, columns]. The first loop over a row
/// computes the sums for dx and adds to the partial gradients; the second loop writes dx.
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

#if HWY_ONCE

#include <algorithm>
#include <memory>
#include <vector>

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/layer_norm.h"
#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(norm_forward_rows);
HWY_EXPORT(norm_backward_rows);
HWY_EXPORT(norm_sum_chunks);
HWY_EXPORT(dropout_add_rows);
HWY_EXPORT(dropout_gradient_rows);

namespace {

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Number of rows that is worth a task.
int64_t rows_per_task(int64_t columns) {
  constexpr int64_t values = 32768;
  return std::max<int64_t>(1, values / std::max<int64_t>(1, columns));
}

/// `pointer`, or if it is null a row filled with `value`, so that the loops over columns need no branch.
class NormRow {
 public:
  NormRow(const void* pointer, double value, c10::ScalarType dtype, int64_t columns) : pointer_(pointer) {
    if (pointer) return;
    if (dtype == c10::ScalarType::Double) {
      doubles_.assign(columns, value);
      pointer_ = doubles_.data();
    } else {
      floats_.assign(columns, static_cast<float>(value));
      pointer_ = floats_.data();
    }
  }
  NormRow(const NormRow&) = delete;
  NormRow& operator=(const NormRow&) = delete;
  const void* get() const { return pointer_; }

 private:
  const void* pointer_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

/// Runs norm_forward() in tasks of several rows. Calls before(begin, end) before each task.
template <class Before>
void forward_pass(const NormForward& args, Before before) {
  const NormRow weight(args.weight, 1, args.dtype, args.columns), bias(args.bias, 0, args.dtype, args.columns);
  NormForward whole = args;
  whole.weight = weight.get();
  whole.bias = bias.get();
  const int64_t rows = rows_per_task(args.columns);
  parallel_chunks(divide_up(args.rows, rows), [&](int64_t i) {
    const int64_t begin = i * rows, end = std::min(args.rows, (i + 1) * rows);
    before(begin, end);
    HWY_DYNAMIC_DISPATCH(norm_forward_rows)(whole, begin, end);
  });
}

/// Runs norm_backward() in chunks of several rows. Calls after(begin, end) after each chunk.
template <class After>
void backward_pass(const NormBackward& args, After after) {
  constexpr int64_t min_rows = 16, max_chunks = 64, columns_per_task = 512;
  const NormRow weight(args.weight, 1, args.dtype, args.columns);
  NormBackward whole = args;
  whole.weight = weight.get();
  const int64_t rows = std::max({min_rows, divide_up(args.rows, max_chunks), rows_per_task(args.columns)});
  const int64_t chunks = divide_up(args.rows, rows);
  // Each chunk has [2, columns]: gradients of weight and of bias.
  const int64_t chunk_bytes = 2 * args.columns * (args.dtype == c10::ScalarType::Double ? 8 : 4);
  const auto partial = std::make_unique_for_overwrite<char[]>(chunks * chunk_bytes);
  parallel_chunks(chunks, [&](int64_t i) {
    const int64_t begin = i * rows, end = std::min(args.rows, (i + 1) * rows);
    HWY_DYNAMIC_DISPATCH(norm_backward_rows)(whole, begin, end, partial.get() + i * chunk_bytes);
    after(begin, end);
  });
  if (!args.dweight && !args.dbias) return;
  parallel_chunks(divide_up(args.columns, columns_per_task), [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(norm_sum_chunks)
    (whole, partial.get(), chunks, i * columns_per_task, std::min(args.columns, (i + 1) * columns_per_task));
  });
}

}  // namespace

void norm_forward(const NormForward& args) {
  forward_pass(args, [](int64_t, int64_t) {});
}

void norm_backward(const NormBackward& args) {
  backward_pass(args, [](int64_t, int64_t) {});
}

void dropout_norm_forward(const DropoutNormForward& args) {
  NormForward of_sum = args.norm;
  of_sum.x = args.sum;
  forward_pass(of_sum, [&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(dropout_add_rows)(args, begin, end); });
}

void dropout_norm_backward(const DropoutNormBackward& args) {
  const bool more = args.norm.dx && (args.dx || args.dsum);
  backward_pass(args.norm, [&](int64_t begin, int64_t end) {
    if (more) HWY_DYNAMIC_DISPATCH(dropout_gradient_rows)(args, begin, end);
  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
