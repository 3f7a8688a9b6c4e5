// Batch norm over rows, for float and bf16. Compiled once per instruction set that Highway supports; the best one is
// chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/batch_norm.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "bellows/kernels/batch_norm.h"
#include "bellows/kernels/cpu/columns_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

constexpr int64_t rows_of_part = 64;  ///< number of rows that are added in float before the sums are added to doubles

/// Adds two terms per value over rows, separately for each channel.
/// Params: part – [2, channels], scratch
///         sums – [2, channels], results
///         add  – add(lanes, place, channel, s, q) adds the terms at a place to s and q
template <class D, class Add>
HWY_INLINE void sum_rows(D d, size_t channels, int64_t begin, int64_t end, float* part, double* sums, Add add) {
  std::fill_n(sums, 2 * channels, 0.0);
  for (int64_t first = begin; first < end; first += rows_of_part) {
    std::fill_n(part, 2 * channels, 0.0F);
    const int64_t last = HWY_MIN(end, first + rows_of_part);
    for (int64_t row = first; row < last; row += 4) {
      const auto rows = static_cast<size_t>(HWY_MIN(last - row, int64_t{4}));
      const size_t start = static_cast<size_t>(row) * channels;
      for_columns(d, channels, [&](auto lanes, size_t c) HWY_ATTR {
        auto s = lanes.load(d, part + c), q = lanes.load(d, part + channels + c);
        for (size_t r = 0; r < rows; ++r) add(lanes, start + r * channels + c, c, s, q);
        lanes.store(d, s, part + c);
        lanes.store(d, q, part + channels + c);
      });
    }
    for (size_t i = 0; i < 2 * channels; ++i) sums[i] += static_cast<double>(part[i]);
  }
}

/// Writes the mean of some rows of each channel, so that a pivot is close to the mean of all rows.
template <class T>
void find_pivot(const BatchNormForward& args, float* pivot) {
  constexpr int64_t most_samples = 16;
  const hn::ScalableTag<float> d;
  const int64_t samples = HWY_MIN(args.rows, most_samples);
  const auto share = hn::Set(d, 1.0F / static_cast<float>(samples));
  for_columns(d, static_cast<size_t>(args.channels), [&](auto lanes, size_t c) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t row = args.rows * i / samples;
      sum = hn::Add(sum, lanes.load(d, static_cast<const T*>(args.x) + row * args.channels + c));
    }
    lanes.store(d, hn::Mul(sum, share), pivot + c);
  });
}

/// Sums of the distances from a pivot and of their squares.
template <class T>
void sum_moments(const BatchNormForward& args, const float* pivot, int64_t begin, int64_t end, float* part,
                 double* sums) {
  const hn::ScalableTag<float> d;
  const T* const x = static_cast<const T*>(args.x);
  sum_rows(d, static_cast<size_t>(args.channels), begin, end, part, sums,
           [&](auto lanes, size_t at, size_t c, auto& s, auto& q) HWY_ATTR {
             const auto distance = hn::Sub(lanes.load(d, x + at), lanes.load(d, pivot + c));
             s = hn::Add(s, distance);
             q = hn::MulAdd(distance, distance, q);
           });
}

/// Calls step(lanes, place, channel) for all values of the rows.
template <class D, class Step>
HWY_INLINE void for_rows(D d, size_t channels, int64_t begin, int64_t end, Step step) {
  for (int64_t row = begin; row < end; ++row) {
    const size_t start = static_cast<size_t>(row) * channels;
    for_columns(d, channels, [&](auto lanes, size_t c) HWY_ATTR { step(lanes, start + c, c); });
  }
}

/// Params: factor – [channels], invstd · weight
template <class T>
void normalize(const BatchNormForward& args, const float* factor, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const T* const x = static_cast<const T*>(args.x);
  T* const y = static_cast<T*>(args.y);
  const auto normal = [&](auto lanes, size_t at, size_t c) HWY_ATTR {
    const auto deviation = hn::Sub(lanes.load(d, x + at), lanes.load(d, args.mean + c));
    return hn::MulAdd(deviation, lanes.load(d, factor + c), lanes.load(d, args.bias + c));
  };
  const auto channels = static_cast<size_t>(args.channels);
  if (args.relu) {
    for_rows(d, channels, begin, end, [&](auto lanes, size_t at, size_t c) HWY_ATTR {
      const auto value = normal(lanes, at, c);
      lanes.store(d, hn::IfThenZeroElse(hn::Le(value, hn::Zero(d)), value), y + at);
    });
  } else {
    for_rows(d, channels, begin, end,
             [&](auto lanes, size_t at, size_t c) HWY_ATTR { lanes.store(d, normal(lanes, at, c), y + at); });
  }
}

/// Calls action(gradient) with a function gradient(lanes, place, channel, deviation), which returns the gradient in front
/// of the ReLU.
template <class T, class Action>
HWY_INLINE void with_gradient(const BatchNormBackward& args, const float* factor, Action action) {
  const hn::ScalableTag<float> d;
  const T* const dy = static_cast<const T*>(args.dy);
  if (args.relu) {
    action([&](auto lanes, size_t at, size_t c, auto deviation) HWY_ATTR {
      const auto y = hn::MulAdd(deviation, lanes.load(d, factor + c), lanes.load(d, args.bias + c));
      return hn::IfThenZeroElse(hn::Le(y, hn::Zero(d)), lanes.load(d, dy + at));
    });
  } else {
    action([&](auto lanes, size_t at, size_t, auto) HWY_ATTR { return lanes.load(d, dy + at); });
  }
}

/// Sums of the gradients, and of the gradients times the distances from the mean.
template <class T>
void sum_gradients(const BatchNormBackward& args, const float* factor, int64_t begin, int64_t end, float* part,
                   double* sums) {
  const hn::ScalableTag<float> d;
  const T* const x = static_cast<const T*>(args.x);
  with_gradient<T>(args, factor, [&](auto gradient) HWY_ATTR {
    sum_rows(d, static_cast<size_t>(args.channels), begin, end, part, sums,
             [&](auto lanes, size_t at, size_t c, auto& s, auto& q) HWY_ATTR {
               const auto deviation = hn::Sub(lanes.load(d, x + at), lanes.load(d, args.mean + c));
               const auto g = gradient(lanes, at, c, deviation);
               s = hn::Add(s, g);
               q = hn::MulAdd(g, deviation, q);
             });
  });
}

/// Params: factor        – [channels], invstd · weight
///         mean_gradient – [channels]
///         along         – [channels], the mean of gradient · deviation / variance
template <class T>
void input_gradient(const BatchNormBackward& args, const float* factor, const float* mean_gradient, const float* along,
                    int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const T* const x = static_cast<const T*>(args.x);
  T* const dx = static_cast<T*>(args.dx);
  with_gradient<T>(args, factor, [&](auto gradient) HWY_ATTR {
    for_rows(d, static_cast<size_t>(args.channels), begin, end, [&](auto lanes, size_t at, size_t c) HWY_ATTR {
      const auto deviation = hn::Sub(lanes.load(d, x + at), lanes.load(d, args.mean + c));
      const auto apart = hn::Sub(gradient(lanes, at, c, deviation), lanes.load(d, mean_gradient + c));
      const auto straight = hn::NegMulAdd(deviation, lanes.load(d, along + c), apart);
      lanes.store(d, hn::Mul(lanes.load(d, factor + c), straight), dx + at);
    });
  });
}

/// Calls action(T*) with float or BFloat16.
template <class Action>
HWY_INLINE void with_type(c10::ScalarType dtype, Action action) {
  if (dtype == c10::ScalarType::Float) return action(static_cast<float*>(nullptr));
  action(static_cast<c10::BFloat16*>(nullptr));
}

void batch_norm_pivot(const BatchNormForward& args, float* pivot) {
  with_type(args.dtype, [&](auto* type) { find_pivot<std::remove_pointer_t<decltype(type)>>(args, pivot); });
}
void batch_norm_sum_moments(const BatchNormForward& args, const float* pivot, int64_t begin, int64_t end, float* part,
                            double* sums) {
  with_type(args.dtype, [&](auto* type) {
    sum_moments<std::remove_pointer_t<decltype(type)>>(args, pivot, begin, end, part, sums);
  });
}
/// Params: sums – [2, channels], the result of batch_norm_sum_moments() for all rows
void batch_norm_moments(const BatchNormForward& args, const float* pivot, const double* sums, float* factor) {
  const double n = static_cast<double>(args.rows), *const squares = sums + args.channels;
  for (int64_t c = 0; c < args.channels; ++c) {
    const double distance = sums[c] / n, found = squares[c] / n - distance * distance;
    const double variance = found < 0 ? 0 : found;  // keeps NaN
    args.mean[c] = static_cast<float>(pivot[c] + distance);
    args.variance[c] = static_cast<float>(variance);
    args.invstd[c] = static_cast<float>(1 / std::sqrt(variance + args.eps));
    factor[c] = args.weight ? args.invstd[c] * args.weight[c] : args.invstd[c];
  }
}
void batch_norm_normalize(const BatchNormForward& args, const float* factor, int64_t begin, int64_t end) {
  with_type(args.dtype,
            [&](auto* type) { normalize<std::remove_pointer_t<decltype(type)>>(args, factor, begin, end); });
}
void batch_norm_sum_gradients(const BatchNormBackward& args, const float* factor, int64_t begin, int64_t end,
                              float* part, double* sums) {
  with_type(args.dtype, [&](auto* type) {
    sum_gradients<std::remove_pointer_t<decltype(type)>>(args, factor, begin, end, part, sums);
  });
}
/// Params: sums                 – [2, channels], the result of batch_norm_sum_gradients() for all rows
///         mean_gradient, along – results, see input_gradient()
void batch_norm_gradients(const BatchNormBackward& args, const double* sums, float* mean_gradient, float* along) {
  const double n = static_cast<double>(args.rows), *const products = sums + args.channels;
  for (int64_t c = 0; c < args.channels; ++c) {
    const double invstd = args.invstd[c];
    mean_gradient[c] = static_cast<float>(sums[c] / n);
    along[c] = static_cast<float>(products[c] * invstd * invstd / n);
    if (args.dweight) args.dweight[c] = static_cast<float>(products[c] * invstd);
    if (args.dbias) args.dbias[c] = static_cast<float>(sums[c]);
  }
}
void batch_norm_input_gradient(const BatchNormBackward& args, const float* factor, const float* mean_gradient,
                               const float* along, int64_t begin, int64_t end) {
  with_type(args.dtype, [&](auto* type) {
    input_gradient<std::remove_pointer_t<decltype(type)>>(args, factor, mean_gradient, along, begin, end);
  });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <numeric>
#include <utility>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(batch_norm_pivot);
HWY_EXPORT(batch_norm_sum_moments);
HWY_EXPORT(batch_norm_moments);
HWY_EXPORT(batch_norm_normalize);
HWY_EXPORT(batch_norm_sum_gradients);
HWY_EXPORT(batch_norm_gradients);
HWY_EXPORT(batch_norm_input_gradient);

namespace {

/// Divides the rows. If few channels do not fill vectors, several rows are joined to one wide row, in which each channel
/// occurs several times. Wide rows form chunks. The last rows, which do not fill a wide row, are a chunk of their own.
/// All this depends only on the sizes.
///
/// Scratch memory: sums of each chunk [2, wide channels], totals [2, channels], sums in float [2, wide channels] of each
/// chunk, and five vectors of wide channels.
class BatchNormChunks {
 public:
  BatchNormChunks(int64_t rows, int64_t channels) : channels_(channels) {
    constexpr int64_t lanes = 16, most_joined_channels = 2048, values_of_chunk = 32768, most_chunks = 64;
    joined_ = lanes / std::gcd(channels, lanes);
    if (joined_ * channels > most_joined_channels || rows < 4 * joined_) joined_ = 1;
    wide_rows_ = rows / joined_;
    rest_ = {wide_rows_ * joined_, rows};
    const int64_t wanted = std::clamp<int64_t>(rows * channels / values_of_chunk, 1, most_chunks);
    rows_of_chunk_ = (wide_rows_ + wanted - 1) / wanted;
    whole_ = (wide_rows_ + rows_of_chunk_ - 1) / rows_of_chunk_;
  }

  int64_t wide() const { return joined_ * channels_; }
  size_t scratch_bytes() const {
    const auto chunks = static_cast<size_t>(count()), wide = static_cast<size_t>(this->wide());
    return chunks * 2 * wide * (sizeof(double) + sizeof(float)) + 2 * channels_ * sizeof(double) +
           vectors * wide * sizeof(float);
  }
  double* totals(void* scratch) const { return sums(scratch, count()); }
  float* vector(void* scratch, int64_t i) const {
    return reinterpret_cast<float*>(totals(scratch) + 2 * channels_) + i * wide();
  }

  /// Repeats a vector of the channels in place, for wide rows.
  void widen(float* vector) const {
    for (int64_t i = 1; i < joined_; ++i) std::copy_n(vector, channels_, vector + i * channels_);
  }
  /// Copies a vector of the channels and repeats it.
  float* widened(const float* from, float otherwise, float* to) const {
    if (from)
      std::copy_n(from, channels_, to);
    else
      std::fill_n(to, channels_, otherwise);
    widen(to);
    return to;
  }

  /// Calls body(args, first row, end of rows, chunk) in parallel, with `args` for wide rows or for the last rows.
  template <class Args, class Body>
  void run(const Args& args, Body body) const {
    Args wide_args = args;
    wide_args.rows = wide_rows_;
    wide_args.channels = wide();
    parallel_chunks(count(), [&](int64_t i) {
      if (i == whole_) return body(args, rest_.first, rest_.second, i);
      body(wide_args, i * rows_of_chunk_, std::min(wide_rows_, (i + 1) * rows_of_chunk_), i);
    });
  }
  double* sums(void* scratch, int64_t chunk) const { return static_cast<double*>(scratch) + chunk * 2 * wide(); }
  float* part(void* scratch, int64_t chunk) const { return vector(scratch, vectors + 2 * chunk); }

  /// Returns: totals [2, channels] of the sums of all chunks
  const double* add_up(void* scratch) const {
    double* const total = totals(scratch);
    std::fill_n(total, 2 * channels_, 0.0);
    for (int64_t chunk = 0; chunk < count(); ++chunk) {
      const int64_t joined = chunk < whole_ ? joined_ : 1;
      const double* more = sums(scratch, chunk);
      for (double* to : {total, total + channels_}) {
        for (int64_t i = 0; i < joined; ++i, more += channels_) {
          for (int64_t c = 0; c < channels_; ++c) to[c] += more[c];
        }
      }
    }
    return total;
  }

 private:
  int64_t count() const { return whole_ + (rest_.first < rest_.second ? 1 : 0); }

  static constexpr int64_t vectors = 5;
  int64_t channels_, joined_ = 1, wide_rows_ = 0, rows_of_chunk_ = 1, whole_ = 0;
  std::pair<int64_t, int64_t> rest_;
};

}  // namespace

size_t batch_norm_scratch_bytes(int64_t rows, int64_t channels) {
  return BatchNormChunks(rows, channels).scratch_bytes();
}

void batch_norm_forward(const BatchNormForward& args) {
  const BatchNormChunks chunks(args.rows, args.channels);
  const auto vector = [&](int64_t i) { return chunks.vector(args.scratch, i); };
  float *const pivot = vector(0), *const factor = vector(1);
  HWY_DYNAMIC_DISPATCH(batch_norm_pivot)(args, pivot);
  chunks.widen(pivot);
  chunks.run(args, [&](const BatchNormForward& of, int64_t begin, int64_t end, int64_t i) {
    HWY_DYNAMIC_DISPATCH(batch_norm_sum_moments)
    (of, pivot, begin, end, chunks.part(args.scratch, i), chunks.sums(args.scratch, i));
  });
  HWY_DYNAMIC_DISPATCH(batch_norm_moments)(args, pivot, chunks.add_up(args.scratch), factor);
  chunks.widen(factor);
  BatchNormForward normalized = args;
  normalized.mean = chunks.widened(args.mean, 0, vector(2));
  normalized.bias = chunks.widened(args.bias, 0, vector(3));
  chunks.run(normalized, [&](const BatchNormForward& of, int64_t begin, int64_t end, int64_t) {
    HWY_DYNAMIC_DISPATCH(batch_norm_normalize)(of, factor, begin, end);
  });
}

void batch_norm_backward(const BatchNormBackward& args) {
  const BatchNormChunks chunks(args.rows, args.channels);
  const auto vector = [&](int64_t i) { return chunks.vector(args.scratch, i); };
  float *const factor = vector(0), *const mean_gradient = vector(1), *const along = vector(2);
  for (int64_t c = 0; c < args.channels; ++c)
    factor[c] = args.weight ? args.invstd[c] * args.weight[c] : args.invstd[c];
  chunks.widen(factor);
  BatchNormBackward widened = args;
  widened.mean = chunks.widened(args.mean, 0, vector(3));
  widened.bias = chunks.widened(args.bias, 0, vector(4));
  chunks.run(widened, [&](const BatchNormBackward& of, int64_t begin, int64_t end, int64_t i) {
    HWY_DYNAMIC_DISPATCH(batch_norm_sum_gradients)
    (of, factor, begin, end, chunks.part(args.scratch, i), chunks.sums(args.scratch, i));
  });
  HWY_DYNAMIC_DISPATCH(batch_norm_gradients)(args, chunks.add_up(args.scratch), mean_gradient, along);
  chunks.widen(mean_gradient);
  chunks.widen(along);
  chunks.run(widened, [&](const BatchNormBackward& of, int64_t begin, int64_t end, int64_t) {
    HWY_DYNAMIC_DISPATCH(batch_norm_input_gradient)(of, factor, mean_gradient, along, begin, end);
  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
