#pragma once

#include <c10/core/ScalarType.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

// Building blocks for kernels in which the threads of a block work together: loads and stores of 16 bytes, sums over a
// block, and launches. They do not use atomics, so equal inputs give bit-identical results.
namespace bellows::kernels::cuda {

constexpr int warp_threads = 32, max_block_threads = 512, vector_bytes = 16;

/// The type in which values of type T are computed.
template <class T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Number of values of type T that a thread reads at once.
template <class T>
constexpr int vector_values = vector_bytes / static_cast<int>(sizeof(T));

/// The type that moves `count` values at once. Its size is 16 bytes if `count` is greater than 1.
template <class T, int count>
using Bits = std::conditional_t<count == 1, T, uint4>;

template <class T>
__device__ void write(T* to, T value) {
  *to = value;
}
/// Uses an explicit intrinsic, so that the compiler does not split the store into smaller stores.
__device__ inline void write(uint4* to, uint4 value) {
  __stwb(to, value);
}

/// Loads `count` values and converts them to A. If `count` is greater than 1, `from` must be aligned to 16 bytes.
template <int count, class A, class T>
__device__ void load(const T* from, A (&values)[count]) {
  constexpr int width = count < vector_values<T> ? count : vector_values<T>;
  static_assert(sizeof(Bits<T, width>) == width * sizeof(T));
  for (int i = 0; i < count; i += width) {
    const auto bits = *reinterpret_cast<const Bits<T, width>*>(from + i);
    T part[width];
    std::memcpy(part, &bits, sizeof(bits));
    for (int k = 0; k < width; ++k) values[i + k] = static_cast<A>(part[k]);
  }
}

/// Stores values like load(), rounded to nearest even.
template <int count, class A, class T>
__device__ void store(const A (&values)[count], T* to) {
  constexpr int width = count < vector_values<T> ? count : vector_values<T>;
  for (int i = 0; i < count; i += width) {
    T part[width];
    for (int k = 0; k < width; ++k) part[k] = static_cast<T>(values[i + k]);
    Bits<T, width> bits;
    std::memcpy(&bits, part, sizeof(bits));
    write(reinterpret_cast<Bits<T, width>*>(to + i), bits);
  }
}

/// Loads values from `from`. If `from` is null, all values are `value`.
template <int count, class A, class T>
__device__ void load_or(const T* from, int64_t i, A value, A (&values)[count]) {
  if (from) {
    load(from + i, values);
    return;
  }
  for (int k = 0; k < count; ++k) values[k] = value;
}

/// Returns the number of values before the first value that is aligned to 16 bytes, but at most `count`.
template <class T>
__host__ __device__ int64_t values_before_vectors(const T* values, int64_t count) {
  const auto behind = static_cast<int64_t>(reinterpret_cast<uintptr_t>(values) % vector_bytes);
  const int64_t before = (vector_bytes - behind) % vector_bytes / static_cast<int64_t>(sizeof(T));
  return before < count ? before : count;
}

/// Whether all addresses that are not null have the same offset from a multiple of 16 bytes.
inline bool lie_alike(std::initializer_list<const void*> addresses) {
  const void* first = nullptr;
  for (const void* address : addresses) {
    if (!address) continue;
    if (!first) first = address;
    if ((reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(first)) % vector_bytes != 0) return false;
  }
  return true;
}

/// Number of values in one step of for_values(), as a type.
template <int count>
struct Width {};

/// Calls step(width, i) for this thread's part of the values [0, count). The first `before` values and the remainder at
/// the end are processed one at a time. All other values are processed `width` at a time. The assignment of values to
/// threads depends only on the arguments.
template <int width, class Step>
__device__ void for_values(int64_t count, int64_t before, int64_t thread, int64_t threads, Step step) {
  for (int64_t i = thread; i < before; i += threads) step(Width<1>(), i);
  const int64_t vectors = (count - before) / width;
  for (int64_t i = thread; i < vectors; i += threads) step(Width<width>(), before + i * width);
  for (int64_t i = before + vectors * width + thread; i < count; i += threads) step(Width<1>(), i);
}

/// Returns the value of the thread whose lane number differs from this thread's in the bits of `mask`.
template <class V>
__device__ V of_other_lane(const V& value, int mask) {
  static_assert(std::is_trivially_copyable_v<V> && sizeof(V) % sizeof(unsigned) == 0);
  unsigned words[sizeof(V) / sizeof(unsigned)];
  std::memcpy(words, &value, sizeof(V));
  for (unsigned& word : words) word = __shfl_xor_sync(0xffffffff, word, mask);
  V other;
  std::memcpy(&other, words, sizeof(V));
  return other;
}

template <class V>
__device__ void add_lanes(V& value) {
  for (int mask = warp_threads / 2; mask > 0; mask /= 2) value.add(of_other_lane(value, mask));
}

/// Adds up the values of all threads with V::add() and returns the sum to all threads. V() must be the neutral element.
/// Every thread of the block must call this function, and the block size must be a multiple of the warp size.
template <class V>
__device__ V sum_of_block(V value) {
  // Declared as bytes, because shared memory has no initializers.
  alignas(V) __shared__ unsigned char storage[warp_threads * sizeof(V)];
  V* sums = reinterpret_cast<V*>(storage);
  const int lane = threadIdx.x % warp_threads, warp = threadIdx.x / warp_threads;
  add_lanes(value);
  __syncthreads();  // sums of the previous call may still be read
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / warp_threads ? sums[lane] : V();
  add_lanes(value);
  return value;
}

/// Returns the number of threads of a block that processes one row.
inline int row_threads(int64_t columns, int width) {
  const int64_t warps = (columns / width + warp_threads - 1) / warp_threads;
  return static_cast<int>(std::clamp<int64_t>(warps * warp_threads, warp_threads, max_block_threads));
}

/// Returns the size of a grid's x dimension. It is at most 2^31 − 1, so kernels iterate in steps of gridDim.x.
inline unsigned grid_size(int64_t blocks) {
  return static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX));
}

/// Launches a kernel.
/// Throws: std::runtime_error if the launch fails
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, void* stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that later launches do not report it
  throw std::runtime_error(std::string("kernels::cuda::") + name + ": launch failed: " + cudaGetErrorString(error));
}

/// Calls action(T*) with the C++ type of `dtype`.
/// Params: dtype – must be Double, BFloat16, Half or Float
template <class Action>
void with_values(c10::ScalarType dtype, Action action) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return action(static_cast<double*>(nullptr));
    case c10::ScalarType::BFloat16:
      return action(static_cast<c10::BFloat16*>(nullptr));
    case c10::ScalarType::Half:
      return action(static_cast<c10::Half*>(nullptr));
    default:
      return action(static_cast<float*>(nullptr));
  }
}

}  // namespace bellows::kernels::cuda
