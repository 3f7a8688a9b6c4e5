// A block processes one row. For the gradients of weight and bias, it processes some columns of a chunk of rows.
// Compiled, but not yet run on a device.
#include "bellows/kernels/cuda/layer_norm.h"

#include "bellows/kernels/cuda/block_impl.h"
#include "bellows/kernels/dropout_hash.h"
#include "bellows/kernels/layer_norm_formula.h"

namespace bellows::kernels::cuda {

namespace {

constexpr int chunk_threads = 8;  ///< rows of a chunk that a block processes at once
constexpr int64_t min_chunk_rows = 32, max_chunks = 128;

template <class A>
struct TwoSums {
  A first = 0, second = 0;
  __device__ void add(const TwoSums& other) {
    first += other.first;
    second += other.second;
  }
};

/// The fields of a DropoutMask that the kernels need.
struct Dropout {
  explicit Dropout(const DropoutMask& mask)
      : seed(mask.seed), threshold(dropout_threshold(mask.p)), scale(1 / (1 - mask.p)) {}
  uint64_t seed;
  int32_t threshold;
  double scale;
};

template <class A>
class DropoutOfRow {
 public:
  __device__ DropoutOfRow(const Dropout& dropout, int64_t row)
      : keys_(dropout.seed, row), threshold_(dropout.threshold), scale_(static_cast<A>(dropout.scale)) {}
  __device__ A operator()(A value, int64_t column) const {
    return dropout_hash(keys_, column) < threshold_ ? A(0) : value * scale_;
  }

 private:
  DropoutRow keys_;
  int32_t threshold_;
  A scale_;
};

/// Calls step(width, i) for this thread's part of a row. Every loop over a row assigns the same columns to a thread.
template <class T, class Step>
__device__ void for_columns(int64_t columns, int64_t before, Step step) {
  for_values<vector_values<T>>(columns, before, threadIdx.x, blockDim.x, step);
}

template <class T>
__device__ NormOfRow<Accumulate<T>> statistics_of(const T* x, const NormForward& args, int64_t before) {
  using A = Accumulate<T>;
  const A count = args.columns > 0 ? static_cast<A>(args.columns) : A(1);
  A mean = 0;
  if (args.mean) {
    TwoSums<A> sums;
    for_columns<T>(args.columns, before, [&]<int width>(Width<width>, int64_t i) {
      A values[width];
      load(x + i, values);
      for (const A value : values) sums.first += value;
    });
    mean = sum_of_block(sums).first / count;
  }
  TwoSums<A> sums;  // of the deviations from that mean, and of their squares
  for_columns<T>(args.columns, before, [&]<int width>(Width<width>, int64_t i) {
    A values[width];
    load(x + i, values);
    for (const A value : values) {
      sums.first += value - mean;
      sums.second += (value - mean) * (value - mean);
    }
  });
  sums = sum_of_block(sums);
  const A rest = args.mean ? sums.first / count : A(0);  // the first mean was rounded
  const A variance = sums.second / count - rest * rest;
  return {mean + rest, 1 / std::sqrt((variance < 0 ? A(0) : variance) + static_cast<A>(args.eps))};
}

template <class T, bool drops>
__global__ void forward_kernel(DropoutNormForward args, Dropout dropout, int64_t before) {
  using A = Accumulate<T>;
  const NormForward& norm = args.norm;
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const int64_t start = row * norm.columns;
    const T* x = static_cast<const T*>(drops ? args.sum : norm.x) + start;
    if constexpr (drops) {
      const DropoutOfRow<A> kept(dropout, row);
      for_columns<T>(norm.columns, before, [&]<int width>(Width<width>, int64_t i) {
        A values[width], residual[width];
        load(static_cast<const T*>(args.x) + start + i, values);
        load(static_cast<const T*>(args.residual) + start + i, residual);
        for (int k = 0; k < width; ++k) values[k] = residual[k] + kept(values[k], i + k);
        store(values, static_cast<T*>(args.sum) + start + i);
      });
    }
    const NormOfRow<A> of_row = statistics_of(x, norm, before);
    if (threadIdx.x == 0) {
      if (norm.mean) static_cast<A*>(norm.mean)[row] = of_row.mean;
      static_cast<A*>(norm.rstd)[row] = of_row.rstd;
    }
    for_columns<T>(norm.columns, before, [&]<int width>(Width<width>, int64_t i) {
      A values[width], weight[width], bias[width];
      load(x + i, values);
      load_or(static_cast<const A*>(norm.weight), i, A(1), weight);
      load_or(static_cast<const A*>(norm.bias), i, A(0), bias);
      for (int k = 0; k < width; ++k) values[k] = of_row.value(values[k], weight[k], bias[k]);
      store(values, static_cast<T*>(norm.y) + start + i);
    });
  }
}

/// `width` values of a row: x, and g, the gradient of the normalized values.
template <class T, int width>
struct GradientValues {
  using A = Accumulate<T>;
  A x[width], g[width];
  __device__ GradientValues(const NormBackward& args, int64_t start, int64_t i) {
    A weight[width];
    load(static_cast<const T*>(args.x) + start + i, x);
    load(static_cast<const T*>(args.dy) + start + i, g);
    load_or(static_cast<const A*>(args.weight), i, A(1), weight);
    for (int k = 0; k < width; ++k) g[k] *= weight[k];
  }
};

template <class A>
__device__ NormOfRow<A> known_statistics(const NormBackward& args, int64_t row) {
  return {args.mean ? static_cast<const A*>(args.mean)[row] : A(0), static_cast<const A*>(args.rstd)[row]};
}

template <class T, bool drops>
__global__ void dx_kernel(DropoutNormBackward args, Dropout dropout, int64_t before) {
  using A = Accumulate<T>;
  const NormBackward& norm = args.norm;
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const int64_t start = row * norm.columns;
    const NormOfRow<A> of_row = known_statistics<A>(norm, row);
    TwoSums<A> sums;
    for_columns<T>(norm.columns, before, [&]<int width>(Width<width>, int64_t i) {
      const GradientValues<T, width> values(norm, start, i);
      for (int k = 0; k < width; ++k) {
        sums.first += values.g[k];
        sums.second += values.g[k] * of_row.normalized(values.x[k]);
      }
    });
    sums = sum_of_block(sums);
    const A mean_g = norm.mean ? sums.first / static_cast<A>(norm.columns) : A(0);
    const A mean_gx = sums.second / static_cast<A>(norm.columns);
    const DropoutOfRow<A> kept(dropout, row);
    for_columns<T>(norm.columns, before, [&]<int width>(Width<width>, int64_t i) {
      GradientValues<T, width> values(norm, start, i);
      for (int k = 0; k < width; ++k) values.g[k] = of_row.gradient(values.x[k], values.g[k], mean_g, mean_gx);
      if constexpr (drops) {
        A own[width];
        load_or(args.dsum ? static_cast<const T*>(args.dsum) + start : nullptr, i, A(0), own);
        for (int k = 0; k < width; ++k) values.g[k] += own[k];
      }
      store(values.g, static_cast<T*>(norm.dx) + start + i);
      if constexpr (drops) {
        if (!args.dx) return;
        for (int k = 0; k < width; ++k) values.g[k] = kept(values.g[k], i + k);
        store(values.g, static_cast<T*>(args.dx) + start + i);
      }
    });
  }
}

/// Sums `values` over the threads with equal threadIdx.x and writes the sums to `to`, which points to this thread's
/// first column.
template <class A, int width>
__device__ void sum_of_rows(const A (&values)[width], A* to) {
  __shared__ A sums[chunk_threads][width][warp_threads];
  __syncthreads();  // sums of the previous call may still be read
  for (int k = 0; k < width; ++k) sums[threadIdx.y][k][threadIdx.x] = values[k];
  __syncthreads();
  for (int k = threadIdx.y; to && k < width; k += chunk_threads) {
    A sum = 0;
    for (int i = 0; i < chunk_threads; ++i) sum += sums[i][k][threadIdx.x];
    to[k] = sum;
  }
}

/// Partial gradients of weight and bias for the rows of chunk blockIdx.y, in `partial` [chunks, 2, columns].
template <class T, int width>
__global__ void column_sums_kernel(NormBackward args, int64_t chunk_rows, Accumulate<T>* partial) {
  using A = Accumulate<T>;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * warp_threads + threadIdx.x) * width;
  const int64_t begin = blockIdx.y * chunk_rows, end = begin + chunk_rows < args.rows ? begin + chunk_rows : args.rows;
  const bool here = column < args.columns;
  A dweight[width] = {}, dbias[width] = {};
  for (int64_t row = begin + threadIdx.y; here && row < end; row += chunk_threads) {
    const NormOfRow<A> of_row = known_statistics<A>(args, row);
    A x[width], dy[width];
    load(static_cast<const T*>(args.x) + row * args.columns + column, x);
    load(static_cast<const T*>(args.dy) + row * args.columns + column, dy);
    for (int k = 0; k < width; ++k) {
      dweight[k] += dy[k] * of_row.normalized(x[k]);
      dbias[k] += dy[k];
    }
  }
  A* to = partial + static_cast<int64_t>(blockIdx.y) * 2 * args.columns + column;
  sum_of_rows(dweight, here ? to : nullptr);
  sum_of_rows(dbias, here ? to + args.columns : nullptr);
}

template <class A>
__global__ void sum_chunks_kernel(const A* partial, int64_t chunks, int64_t columns, A* dweight, A* dbias) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  A* to = blockIdx.y == 0 ? dweight : dbias;
  if (!to || column >= columns) return;
  A sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[(chunk * 2 + blockIdx.y) * columns + column];
  to[column] = sum;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t chunks_of(int64_t rows) {
  return std::clamp<int64_t>(divide_up(rows, min_chunk_rows), 1, max_chunks);
}

/// Values of a row before the first vector: 0 if all rows of all tensors begin at a multiple of 16 bytes.
template <class T>
int64_t values_before(int64_t columns, std::initializer_list<const void*> addresses) {
  const bool vectors = columns % vector_values<T> == 0 && lie_alike(addresses) &&
                       values_before_vectors(static_cast<const T*>(*addresses.begin()), columns) == 0;
  return vectors ? 0 : columns;
}

template <class T, bool drops>
void launch_forward(const DropoutNormForward& args, void* stream) {
  const NormForward& norm = args.norm;
  const int64_t before =
      values_before<T>(norm.columns, {norm.y, norm.x, norm.weight, norm.bias, args.x, args.residual, args.sum});
  launch("norm_forward", forward_kernel<T, drops>, grid_size(norm.rows), row_threads(norm.columns, vector_values<T>),
         stream, args, Dropout(args.dropout), before);
}

template <class T, bool drops>
void launch_dx(const DropoutNormBackward& args, void* stream) {
  const NormBackward& norm = args.norm;
  const int64_t before = values_before<T>(norm.columns, {norm.dx, norm.x, norm.dy, norm.weight, args.dsum, args.dx});
  launch("norm_backward", dx_kernel<T, drops>, grid_size(norm.rows), row_threads(norm.columns, vector_values<T>),
         stream, args, Dropout(args.dropout), before);
}

template <class T, int width>
void launch_column_sums(const NormBackward& args, void* workspace, void* stream) {
  using A = Accumulate<T>;
  const int64_t chunks = chunks_of(args.rows);
  const auto tiles = static_cast<unsigned>(divide_up(args.columns, warp_threads * width));
  launch("norm_backward", column_sums_kernel<T, width>, dim3(tiles, static_cast<unsigned>(chunks)),
         dim3(warp_threads, chunk_threads), stream, args, divide_up(args.rows, chunks), static_cast<A*>(workspace));
  constexpr int threads = 256;
  launch("norm_backward", sum_chunks_kernel<A>, dim3(static_cast<unsigned>(divide_up(args.columns, threads)), 2),
         threads, stream, static_cast<const A*>(workspace), chunks, args.columns, static_cast<A*>(args.dweight),
         static_cast<A*>(args.dbias));
}

template <class T, bool drops>
void backward_pass(const DropoutNormBackward& args, void* workspace, void* stream) {
  const NormBackward& norm = args.norm;
  if (norm.columns == 0) return;
  if (norm.dx && norm.rows > 0) launch_dx<T, drops>(args, stream);
  if (!norm.dweight && !norm.dbias) return;
  if (values_before<T>(norm.columns, {norm.x, norm.dy}) == 0) {
    launch_column_sums<T, vector_values<T>>(norm, workspace, stream);
  } else {
    launch_column_sums<T, 1>(norm, workspace, stream);
  }
}

}  // namespace

int64_t norm_workspace(int64_t rows, int64_t columns) {
  return chunks_of(rows) * 2 * columns;
}

void norm_forward(const NormForward& args, void* stream) {
  if (args.rows == 0) return;
  DropoutNormForward plain;
  plain.norm = args;
  with_values(args.dtype,
              [&](auto* type) { launch_forward<std::remove_pointer_t<decltype(type)>, false>(plain, stream); });
}

void norm_backward(const NormBackward& args, void* workspace, void* stream) {
  DropoutNormBackward plain;
  plain.norm = args;
  with_values(args.dtype, [&](auto* type) {
    backward_pass<std::remove_pointer_t<decltype(type)>, false>(plain, workspace, stream);
  });
}

void dropout_norm_forward(const DropoutNormForward& args, void* stream) {
  if (args.norm.rows == 0) return;
  with_values(args.norm.dtype,
              [&](auto* type) { launch_forward<std::remove_pointer_t<decltype(type)>, true>(args, stream); });
}

void dropout_norm_backward(const DropoutNormBackward& args, void* workspace, void* stream) {
  with_values(args.norm.dtype,
              [&](auto* type) { backward_pass<std::remove_pointer_t<decltype(type)>, true>(args, workspace, stream); });
}

}  // namespace bellows::kernels::cuda
