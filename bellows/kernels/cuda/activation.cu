// Element-wise kernels. Compiled, but not yet run on a device.
#include "bellows/kernels/cuda/activation.h"

#include "bellows/kernels/activation_formula.h"
#include "bellows/kernels/cuda/block_impl.h"

namespace bellows::kernels::cuda {

namespace {

constexpr int activation_threads = 256;

/// Calls step(width, i) for this thread's part of all values; `before` as in for_values().
template <class T, class Step>
__device__ void for_all_values(int64_t count, int64_t before, Step step) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for_values<vector_values<T>>(count, before, thread, static_cast<int64_t>(gridDim.x) * blockDim.x, step);
}

template <Activation activation, class T>
__global__ void forward_kernel(ActivationForward args, int64_t before) {
  using A = Accumulate<T>;
  for_all_values<T>(args.count, before, [&]<int width>(Width<width>, int64_t i) {
    A values[width];
    load(static_cast<const T*>(args.x) + i, values);
    for (A& value : values) value = activation_at<activation>(value).value;
    if constexpr (activation == Activation::swiglu) {
      A up[width];
      load(static_cast<const T*>(args.up) + i, up);
      for (int k = 0; k < width; ++k) values[k] *= up[k];
    }
    store(values, static_cast<T*>(args.y) + i);
  });
}

/// dx may be dy: each thread reads all of its values before it writes them.
template <Activation activation, class T>
__global__ void backward_kernel(ActivationBackward args, int64_t before) {
  using A = Accumulate<T>;
  constexpr bool gated = activation == Activation::swiglu;
  for_all_values<T>(args.count, before, [&]<int width>(Width<width>, int64_t i) {
    A dy[width], x[width], up[width], y[width], dup[width];
    load(static_cast<const T*>(args.dy) + i, dy);
    load(static_cast<const T*>(args.x) + i, x);
    load_or(gated ? static_cast<const T*>(args.up) : nullptr, i, A(1), up);
    for (int k = 0; k < width; ++k) {
      const ActivationPoint<A> point = activation_at<activation>(x[k]);
      y[k] = point.value * up[k];
      dup[k] = point.value * dy[k];
      dy[k] *= point.slope * up[k];
    }
    if constexpr (gated) store(dup, static_cast<T*>(args.dup) + i);
    if (args.y) store(y, static_cast<T*>(args.y) + i);
    store(dy, static_cast<T*>(args.dx) + i);
  });
}

/// Calls action(integral constant of the activation, pointer to the type of the values).
template <class Action>
void with_activation(Activation activation, c10::ScalarType dtype, Action action) {
  with_values(dtype, [&](auto* type) {
    switch (activation) {
      case Activation::gelu:
        return action(std::integral_constant<Activation, Activation::gelu>(), type);
      case Activation::gelu_tanh:
        return action(std::integral_constant<Activation, Activation::gelu_tanh>(), type);
      default:
        return action(std::integral_constant<Activation, Activation::swiglu>(), type);
    }
  });
}

/// Number of values before the first vector: all values if the addresses have different offsets from a multiple of 16
/// bytes.
template <class T>
int64_t values_before(const void* x, int64_t count, bool alike) {
  return alike ? values_before_vectors(static_cast<const T*>(x), count) : count;
}

unsigned blocks_for(int64_t count, int64_t width) {
  return grid_size((count + width * activation_threads - 1) / (width * activation_threads));
}

}  // namespace

void activation_forward(const ActivationForward& args, void* stream) {
  if (args.count == 0) return;
  with_activation(args.activation, args.dtype, [&](auto which, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t before = values_before<T>(args.x, args.count, lie_alike({args.x, args.up, args.y}));
    launch("activation_forward", forward_kernel<decltype(which)::value, T>, blocks_for(args.count, vector_values<T>),
           activation_threads, stream, args, before);
  });
}

void activation_backward(const ActivationBackward& args, void* stream) {
  if (args.count == 0) return;
  with_activation(args.activation, args.dtype, [&](auto which, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool alike = lie_alike({args.x, args.dy, args.up, args.dx, args.dup, args.y});
    launch("activation_backward", backward_kernel<decltype(which)::value, T>, blocks_for(args.count, vector_values<T>),
           activation_threads, stream, args, values_before<T>(args.x, args.count, alike));
  });
}

}  // namespace bellows::kernels::cuda
