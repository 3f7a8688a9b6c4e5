// A block processes one row. Compiled, but not yet run on a device.
#include "bellows/kernels/cuda/softmax.h"

#include "bellows/kernels/cuda/block_impl.h"
#include "bellows/kernels/softmax_formula.h"

namespace bellows::kernels::cuda {

namespace {

template <class A>
struct RowSums {
  SoftmaxSum<A> softmax;
  A total = 0;
  __device__ void add(const RowSums& other) {
    softmax.add(other.softmax);
    total += other.total;
  }
};

/// The target's column in this range, or a column that does not exist.
__device__ int64_t target_column(const SoftmaxRows& scores, int64_t row) {
  return scores.target[row] - scores.first;
}

template <class T>
__global__ void statistics_kernel(SoftmaxStatistics args) {
  using A = Accumulate<T>;
  const SoftmaxRows& scores = args.scores;
  for (int64_t row = blockIdx.x; row < scores.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(scores.logits) + row * scores.stride;
    RowSums<A> sums;
    const int64_t before = values_before_vectors(x, scores.columns);
    for_values<vector_values<T>>(scores.columns, before, threadIdx.x, blockDim.x,
                                 [&]<int width>(Width<width>, int64_t i) {
                                   A values[width];
                                   load(x + i, values);
                                   sums.softmax.add(values, width);
                                   for (const A value : values) sums.total += value;
                                 });
    sums = sum_of_block(sums);
    if (threadIdx.x != 0) continue;
    A *max = static_cast<A*>(args.max) + row, *sum = static_cast<A*>(args.sum) + row;
    SoftmaxSum<A> state{*max, *sum};
    state.add(sums.softmax);
    *max = state.max;
    *sum = state.sum;
    if (args.total) static_cast<A*>(args.total)[row] += sums.total;
    const int64_t target = target_column(scores, row);
    if (target >= 0 && target < scores.columns) static_cast<A*>(args.picked)[row] = static_cast<A>(x[target]);
  }
}

/// Params: alike – whether the rows of gradient and logits have the same alignment. The gradient may be the logits:
///         each thread reads only the values that it writes.
template <class T>
__global__ void gradient_kernel(SoftmaxGradient args, bool alike) {
  using A = Accumulate<T>;
  const SoftmaxRows& scores = args.scores;
  const A on = static_cast<A>(args.on), off = static_cast<A>(args.off);
  for (int64_t row = blockIdx.x; row < scores.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(scores.logits) + row * scores.stride;
    T* gradient = static_cast<T*>(args.gradient) + row * scores.stride;
    const A log_sum = static_cast<const A*>(args.log_sum)[row], scale = static_cast<const A*>(args.scale)[row];
    const int64_t target = target_column(scores, row);
    const int64_t before = alike ? values_before_vectors(x, scores.columns) : scores.columns;
    for_values<vector_values<T>>(
        scores.columns, before, threadIdx.x, blockDim.x, [&]<int width>(Width<width>, int64_t i) {
          A values[width];
          load(x + i, values);
          for (int k = 0; k < width; ++k) {
            values[k] = softmax_gradient_of(values[k], log_sum, i + k == target ? on : A(0), off, scale);
          }
          store(values, gradient + i);
        });
  }
}

}  // namespace

void softmax_statistics(const SoftmaxStatistics& args, void* stream) {
  const SoftmaxRows& scores = args.scores;
  if (scores.rows == 0 || scores.columns == 0) return;
  with_values(scores.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch("softmax_statistics", statistics_kernel<T>, grid_size(scores.rows),
           row_threads(scores.columns, vector_values<T>), stream, args);
  });
}

void softmax_gradient(const SoftmaxGradient& args, void* stream) {
  const SoftmaxRows& scores = args.scores;
  if (scores.rows == 0 || scores.columns == 0) return;
  with_values(scores.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch("softmax_gradient", gradient_kernel<T>, grid_size(scores.rows),
           row_threads(scores.columns, vector_values<T>), stream, args, lie_alike({scores.logits, args.gradient}));
  });
}

}  // namespace bellows::kernels::cuda
