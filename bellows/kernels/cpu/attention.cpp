// Attention, compiled once per instruction set that Highway supports; the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/attention.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "bellows/kernels/attention.h"
#include "bellows/kernels/cpu/matmul_tiles_impl.h"
#include "bellows/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// A whole vector of a row that has no padding.
struct WholeVector {
  HWY_INLINE hn::Vec<Full> load(const float* from) const { return hn::LoadU(Full(), from); }
  HWY_INLINE void store(hn::Vec<Full> values, float* to) const { hn::StoreU(values, Full(), to); }
  HWY_INLINE hn::Vec<Full> only(hn::Vec<Full> values, hn::Vec<Full> /*rest*/) const { return values; }
};
/// The last vector of a row. Values after the last column are loaded as 0 and not stored.
struct LastVector {
  hn::Mask<Full> some;
  int64_t count;  ///< of lanes in the mask
  HWY_INLINE hn::Vec<Full> load(const float* from) const { return load_first(Full(), some, count, from); }
  HWY_INLINE void store(hn::Vec<Full> values, float* to) const { hn::BlendedStore(values, some, Full(), to); }
  HWY_INLINE hn::Vec<Full> only(hn::Vec<Full> values, hn::Vec<Full> rest) const {
    return hn::IfThenElse(some, values, rest);
  }
};

/// Calls step(vector, i) for all vectors of a row.
template <class Step>
HWY_INLINE void for_vectors(int64_t columns, const Step& step) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= columns; i += lanes) step(WholeVector(), i);
  if (i < columns) step(LastVector{hn::FirstN(d, static_cast<size_t>(columns - i)), columns - i}, i);
}

// The functions below change rows `x` of logits or gradients, which are padded to whole vectors. Masked stores to such a
// row would delay the loads that follow.

/// Applies a masking step to a row.
template <bool adds>
HWY_INLINE void mask_row(const AttentionMask& mask, int64_t i, int64_t row, int64_t columns, float* x) {
  const Full d;
  if (adds && mask.added.data) {
    const float* const added = mask.added.at(i) + row * mask.added.row;
    if (mask.added.column == 1) {
      for_vectors(columns, [&](auto vector, int64_t c) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, x + c), vector.load(added + c)), d, x + c);
      });
    } else {
      for (int64_t c = 0; c < columns; ++c) x[c] += added[c * mask.added.column];
    }
  } else {
    const bool* const replaced = mask.replaced.at(i) + row * mask.replaced.row;
    for (int64_t c = 0; c < columns; ++c)
      x[c] = replaced[c * mask.replaced.column] != mask.inverted ? mask.value : x[c];
  }
}

/// The operands of softmax for one row. Those that are not needed are null.
struct SoftmaxRow {
  float* weights;        ///< receives the result before dropout
  const float* dropout;  ///< factors of the result
  float* dropped;        ///< receives the result after dropout
  bool empty_is_zero;    ///< whether the result is 0 if all logits are −∞
};

HWY_INLINE bool is_empty(const float* x, int64_t columns) {
  return std::all_of(x, x + columns, [](float logit) { return logit == -HUGE_VALF; });
}

HWY_INLINE void softmax_row(int64_t columns, float* x, const SoftmaxRow& row) {
  const Full d;
  const auto lowest = hn::Set(d, -HUGE_VALF);
  auto largest = lowest;
  for_vectors(columns, [&](auto vector, int64_t c)
                           HWY_ATTR { largest = hn::Max(largest, vector.only(hn::LoadU(d, x + c), lowest)); });
  auto shift = hn::MaxOfLanes(d, largest);
  auto total = hn::Zero(d);
  // The weights of an empty row are e^(−∞ − 0) / 1.
  if (row.empty_is_zero && is_empty(x, columns)) shift = hn::Zero(d), total = hn::Set(d, 1);
  auto sums = hn::Zero(d);
  for_vectors(columns, [&](auto vector, int64_t c) HWY_ATTR {
    // Highway's exponential treats NaN as a very small number. Lanes after the last column add 0.
    const auto distance = hn::Sub(vector.only(hn::LoadU(d, x + c), lowest), shift);
    const auto power = hn::IfThenElse(hn::IsNaN(distance), distance, hn::Exp(d, distance));
    hn::StoreU(power, d, x + c);
    sums = hn::Add(sums, power);
  });
  const auto factor = hn::Div(hn::Set(d, 1), hn::Add(total, hn::SumOfLanes(d, sums)));
  for_vectors(columns, [&](auto vector, int64_t c) HWY_ATTR {
    auto weight = hn::Mul(hn::LoadU(d, x + c), factor);
    if (row.weights) vector.store(weight, row.weights + c);
    if (row.dropout) weight = hn::Mul(weight, vector.load(row.dropout + c));
    if (row.dropped) vector.store(weight, row.dropped + c);
    hn::StoreU(weight, d, x + c);
  });
}

/// Computes the gradient of the logits from the gradient of the attention weights.
/// Params: dropout – factors of the weights; may be null
///         dropped – padded; receives the weights after dropout
HWY_INLINE void softmax_backward_row(int64_t columns, float* x, const float* weights, const float* dropout,
                                     float* dropped, float scale) {
  const Full d;
  auto sums = hn::Zero(d);
  for_vectors(columns, [&](auto vector, int64_t c) HWY_ATTR {
    // The matmul may leave old values after the last column. If such a value is NaN, a weight of 0 does not remove it.
    auto gradient = vector.only(hn::LoadU(d, x + c), hn::Zero(d));
    const auto weight = vector.load(weights + c);
    if (dropout) {
      const auto factor = vector.load(dropout + c);
      gradient = hn::Mul(gradient, factor);
      hn::StoreU(gradient, d, x + c);
      hn::StoreU(hn::Mul(weight, factor), d, dropped + c);
    }
    sums = hn::MulAdd(gradient, weight, sums);
  });
  const auto mean = hn::SumOfLanes(d, sums), factor = hn::Set(d, scale);
  for_vectors(columns, [&](auto vector, int64_t c) HWY_ATTR {
    const auto weight = hn::Mul(vector.load(weights + c), factor);
    const auto gradient = vector.only(hn::LoadU(d, x + c), mean);
    hn::StoreU(hn::Mul(hn::Sub(gradient, mean), weight), d, x + c);
  });
}

HWY_INLINE void scale_row(float factor, int64_t columns, float* x) {
  const Full d;
  for_vectors(columns, [&](auto, int64_t c)
                           HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, x + c), hn::Set(d, factor)), d, x + c); });
}

/// Divides the memory of a thread's buffer into aligned parts. Their content is undefined.
class Parts {
 public:
  /// Params: counts – of floats, at least those that are taken
  explicit Parts(std::initializer_list<int64_t> counts) {
    int64_t total = 0;
    for (const int64_t count : counts) total += padded(count);
    next_ = thread_scratch(static_cast<size_t>(total));
  }
  float* take(int64_t count) {
    float* const taken = next_;
    next_ += padded(count);
    return taken;
  }

 private:
  static int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

  float* next_;
};

/// Rows whose logits are in the cache at the same time. Depends on sizes only, because it determines the order of sums.
HWY_INLINE int64_t block_rows(const Attention& of) {
  constexpr int64_t values = 12288, least = 24, most = 96;
  return std::min(of.rows, std::clamp(values / of.columns / 12 * 12, least, most));
}

template <class T>
HWY_INLINE Matrix<const T> matrix_of(const Matrices<const T>& matrices, int64_t i, int64_t first_row = 0) {
  return {matrices.at(i) + first_row * matrices.row, matrices.row, matrices.column};
}
HWY_INLINE Matrix<const float> transposed(Matrix<const float> matrix) {
  return {matrix.data, matrix.column, matrix.row};
}

void forward_rows(const AttentionForward& args, int64_t i, int64_t first, int64_t last) {
  const Attention& of = args.of;
  const int64_t block = block_rows(of), keys = tiles_size(of.width, of.columns),
                values = tiles_size(of.columns, of.value_width), stride = padded_columns(of.columns);
  Parts parts({keys, values, block * stride});
  const Tiles key = make_tiles(matrix_of(of.key, i), of.width, of.columns, parts.take(keys)),
              value = make_tiles(matrix_of(of.value, i), of.columns, of.value_width, parts.take(values));
  float* const logits = parts.take(block * stride);
  for (int64_t row = first; row < last; row += block) {
    const int64_t rows = std::min(block, last - row);
    multiply(matrix_of(of.query, i, row), rows, key, {of.scale, false, logits, stride, true});
    for (int64_t r = 0; r < rows; ++r) {
      float* const x = logits + r * stride;
      for (const AttentionMask& mask : args.masks) mask_row<true>(mask, i, row + r, of.columns, x);
      const int64_t place = (i * of.rows + row + r) * of.columns;
      softmax_row(of.columns, x,
                  {.weights = args.weights ? args.weights + place : nullptr,
                   .dropout = of.dropout.data ? of.dropout.at(i) + (row + r) * of.dropout.row : nullptr,
                   .dropped = args.dropped ? args.dropped + place : nullptr,
                   .empty_is_zero = args.empty_rows_are_zero});
    }
    const bool placed = args.placed.data;
    const int64_t result_row = placed ? args.placed.row : of.value_width;
    float* const result = placed ? args.placed.at(i) : args.result + i * of.rows * of.value_width;
    multiply({logits, stride, 1}, rows, value, {1, false, result + row * result_row, result_row});
  }
}

/// The gradients of one block of rows.
struct BackwardBlock {
  int64_t i, row, rows;
  int64_t stride;  ///< of the rows of `logits` and `dropped`
  const float* weights;
  float *logits, *dropped, *packed;
};

HWY_INLINE void gradients_of_logits(const AttentionBackward& args, const BackwardBlock& block) {
  const Attention& of = args.of;
  const float scale = args.masks.empty() ? of.scale : 1;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* const x = block.logits + r * block.stride;
    softmax_backward_row(of.columns, x, block.weights + r * of.columns,
                         of.dropout.data ? of.dropout.at(block.i) + (block.row + r) * of.dropout.row : nullptr,
                         block.dropped + r * block.stride, scale);
    for (const AttentionMask& mask : args.masks) mask_row<false>(mask, block.i, block.row + r, of.columns, x);
    if (scale != of.scale) scale_row(of.scale, of.columns, x);
  }
}

HWY_INLINE void add_gradients(const AttentionBackward& args, const BackwardBlock& block, const Tiles& key) {
  const Attention& of = args.of;
  const int64_t i = block.i;
  const bool adds = block.row > 0;
  if (args.query_gradient) {
    multiply({block.logits, block.stride, 1}, block.rows, key,
             {1, false, args.query_gradient + (i * of.rows + block.row) * of.width, of.width});
  }
  if (args.key_gradient) {
    const Tiles logits{{block.logits, block.stride, 1}, block.rows, of.columns, nullptr, true};
    multiply(transposed(matrix_of(of.query, i, block.row)), of.width, logits,
             {1, adds, args.key_gradient + i * of.width * of.columns, of.columns});
  }
  if (args.value_gradient) {
    const Tiles gradient = make_tiles(matrix_of(args.gradient, i, block.row), block.rows, of.value_width, block.packed);
    const Matrix<const float> weights = of.dropout.data ? Matrix<const float>{block.dropped, block.stride, 1}
                                                        : Matrix<const float>{block.weights, of.columns, 1};
    multiply(transposed(weights), of.columns, gradient,
             {1, adds, args.value_gradient + i * of.columns * of.value_width, of.value_width});
  }
}

void backward_matrix(const AttentionBackward& args, int64_t i) {
  const Attention& of = args.of;
  const int64_t block = block_rows(of), keys = tiles_size(of.columns, of.width),
                values = tiles_size(of.value_width, of.columns), stride = padded_columns(of.columns),
                packed = tiles_size(block, of.value_width);
  Parts parts({keys, values, block * stride, block * stride, packed});
  const Tiles key = args.query_gradient
                        ? make_tiles(transposed(matrix_of(of.key, i)), of.columns, of.width, parts.take(keys))
                        : Tiles(),
              value = make_tiles(transposed(matrix_of(of.value, i)), of.value_width, of.columns, parts.take(values));
  float *const logits = parts.take(block * stride), *const dropped = parts.take(block * stride),
               *const rest = parts.take(packed);
  for (int64_t row = 0; row < of.rows; row += block) {
    const BackwardBlock now{.i = i,
                            .row = row,
                            .rows = std::min(block, of.rows - row),
                            .stride = stride,
                            .weights = args.weights + (i * of.rows + row) * of.columns,
                            .logits = logits,
                            .dropped = dropped,
                            .packed = rest};
    multiply(matrix_of(args.gradient, i, row), now.rows, value, {1, false, now.logits, stride, true});
    gradients_of_logits(args, now);
    add_gradients(args, now, key);
  }
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <ATen/Parallel.h>

#include <algorithm>

#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_matrix);

namespace {

/// Number of matrices that one task computes: about 20 µs of work.
int64_t matrices_per_task(const Attention& of) {
  constexpr int64_t work = 1 << 20;
  const int64_t each = std::max<int64_t>(1, of.rows * of.columns * (of.width + of.value_width + 16));
  return std::clamp<int64_t>(work / each, 1, std::max<int64_t>(1, of.batch));
}

}  // namespace

void attention_forward(const AttentionForward& args) {
  const Attention& of = args.of;
  if (of.batch <= 0 || of.rows <= 0) return;
  const auto rows = HWY_DYNAMIC_DISPATCH(forward_rows);
  // Rows are split if there are few matrices. This does not change the bits, because rows are independent.
  const int64_t threads = at::get_num_threads(), together = matrices_per_task(of);
  const int64_t parts = of.batch >= 2 * threads || together > 1 ? 1 : std::clamp<int64_t>(of.rows / 48, 1, 2 * threads);
  parallel_chunks((of.batch + together - 1) / together * parts, [&](int64_t task) {
    const int64_t part = task % parts, first = task / parts * together;
    for (int64_t i = first; i < std::min(of.batch, first + together); ++i)
      rows(args, i, of.rows * part / parts, of.rows * (part + 1) / parts);
  });
}

void attention_backward(const AttentionBackward& args) {
  const Attention& of = args.of;
  if (of.batch <= 0 || of.rows <= 0) return;
  const auto matrix = HWY_DYNAMIC_DISPATCH(backward_matrix);
  const int64_t together = matrices_per_task(of);
  parallel_chunks((of.batch + together - 1) / together, [&](int64_t task) {
    for (int64_t i = task * together; i < std::min(of.batch, (task + 1) * together); ++i) matrix(args, i);
  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
