// LayerNorm and RMSNorm, by themselves and behind dropout and a residual, compiled once for each instruction set that Highway knows; the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/norm.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include "bellows/kernels/cpu/dropout_rows_impl.h"
#include "bellows/kernels/cpu/norm_rows_impl.h"

#if HWY_ONCE

#include <algorithm>
#include <memory>
#include <vector>

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/norm.h"
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

/// Rows that make a piece of work worth handing to a thread.
int64_t rows_per_task(int64_t columns) {
  constexpr int64_t values = 32768;
  return std::max<int64_t>(1, values / std::max<int64_t>(1, columns));
}

/// `pointer`, or a row of `value` when it is null: the loops over columns do without a branch.
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

/// Rows as norm_forward() takes them, each task's after before(begin, end).
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

/// Rows as norm_backward() takes them, each chunk's before after(begin, end).
template <class After>
void backward_pass(const NormBackward& args, After after) {
  constexpr int64_t min_rows = 16, max_chunks = 64, columns_per_task = 512;
  const NormRow weight(args.weight, 1, args.dtype, args.columns);
  NormBackward whole = args;
  whole.weight = weight.get();
  const int64_t rows = std::max({min_rows, divide_up(args.rows, max_chunks), rows_per_task(args.columns)});
  const int64_t chunks = divide_up(args.rows, rows);
  // Each chunk: [2, columns], gradients of weight and of bias.
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
