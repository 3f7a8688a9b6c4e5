#include "bellows/kernels/sparse_matmul.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/kernels/parallel.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/sparse_matmul.cpp"
// clang-format off: in this order
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "bellows/kernels/cpu/values_impl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// One row of the result.
template <class T>
struct SparseRow {
  using Sum = Accumulate<T>;
  const int64_t *indices, *order;
  const T *values, *dense;
  int64_t dense_stride, begin, end;

  HWY_INLINE int64_t entry(int64_t k) const { return order ? order[k] : k; }
};

/// Computes `count` vectors of a row. The sums stay in registers.
template <int count, class D, class T>
HWY_INLINE void multiply_vectors(D d, const SparseRow<T>& row, int64_t column, T* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (int64_t k = row.begin; k < row.end; ++k) {
    const int64_t entry = row.entry(k);
    const T* const from = row.dense + row.indices[entry] * row.dense_stride + column;
    const auto value = hn::Set(d, static_cast<Accumulate<T>>(row.values[entry]));
    a = hn::MulAdd(value, load_values(d, from), a);
    if constexpr (count > 1) {
      b = hn::MulAdd(value, load_values(d, from + lanes), b);
      c = hn::MulAdd(value, load_values(d, from + 2 * lanes), c);
      e = hn::MulAdd(value, load_values(d, from + 3 * lanes), e);
    }
  }
  store_values(d, a, out + column);
  if constexpr (count > 1) {
    store_values(d, b, out + column + lanes);
    store_values(d, c, out + column + 2 * lanes);
    store_values(d, e, out + column + 3 * lanes);
  }
}

template <class T>
void multiply_row(const SparseRow<T>& row, int64_t columns, T* out) {
  const hn::ScalableTag<Accumulate<T>> d;
  const hn::CappedTag<Accumulate<T>, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + 4 * lanes <= columns; column += 4 * lanes) multiply_vectors<4>(d, row, column, out);
  for (; column + lanes <= columns; column += lanes) multiply_vectors<1>(d, row, column, out);
  for (; column < columns; ++column) multiply_vectors<1>(one, row, column, out);
}

template <class T>
void multiply_rows(const SparseMatmul& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const SparseRow<T> row{args.indices,
                           args.order,
                           static_cast<const T*>(args.values),
                           static_cast<const T*>(args.dense),
                           args.dense_stride,
                           args.offsets[i],
                           args.offsets[i + 1]};
    multiply_row(row, args.columns, static_cast<T*>(args.out) + i * args.columns);
  }
}

void sparse_rows(const SparseMatmul& args, int64_t begin, int64_t end) {
  if (args.dtype == c10::ScalarType::Float) return multiply_rows<float>(args, begin, end);
  if (args.dtype == c10::ScalarType::Double) return multiply_rows<double>(args, begin, end);
  multiply_rows<c10::BFloat16>(args, begin, end);
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels {

HWY_EXPORT(sparse_rows);

void sparse_matmul(const SparseMatmul& args) {
  const auto type = args.dtype;
  TORCH_CHECK_VALUE(
      type == c10::ScalarType::Float || type == c10::ScalarType::Double || type == c10::ScalarType::BFloat16,
      "sparse_matmul: expected Float, Double or BFloat16, got ", type, ".");
  if (args.rows == 0 || args.columns == 0) return;
  const auto run = [&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(sparse_rows)(args, begin, end); };
  // Work is counted in entries and rows, because an empty row must be written, too.
  const auto work_before = [&](int64_t row) { return args.offsets[row] + row; };
  const int64_t work = work_before(args.rows);
  const int64_t per_chunk = std::max<int64_t>(1, 32768 / args.columns);
  const int64_t chunks = std::clamp<int64_t>(work / per_chunk, 1, 1024);
  const auto first_row = [&](int64_t chunk) {
    const int64_t wanted = work / chunks * chunk + std::min(work % chunks, chunk);
    int64_t low = 0, high = args.rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (work_before(middle) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  if (chunks == 1) return run(0, args.rows);
  parallel_chunks(chunks, [&](int64_t chunk) { run(first_row(chunk), first_row(chunk + 1)); });
}

}  // namespace bellows::kernels
#endif
