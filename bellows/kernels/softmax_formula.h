#pragma once

#include <cmath>

#include "bellows/kernels/host_device.h"

// Softmax, once, in scalar C++: what kernels/ref computes, and what kernels/cuda computes on the device.
namespace bellows::kernels {

/// Largest of some values, and the sum of e^(x − max). The sum of none of them, or of −∞ alone, is 0; NaN stays in it.
template <class T>
struct SoftmaxSum {
  T max = -static_cast<T>(INFINITY), sum = 0;

  BELLOWS_HOST_DEVICE void add(const T* values, int count) {
    T largest = max;
    for (int i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
    if (largest > max) {
      sum *= std::exp(max - largest);
      max = largest;
    }
    for (int i = 0; i < count; ++i) {
      if (values[i] != -static_cast<T>(INFINITY)) sum += std::exp(values[i] - max);
    }
  }

  BELLOWS_HOST_DEVICE void add(const SoftmaxSum& other) {
    const T largest = other.max > max ? other.max : max;
    if (largest == -static_cast<T>(INFINITY)) {  // then there is no e^(max − largest)
      sum += other.sum;
      return;
    }
    sum = sum * std::exp(max - largest) + other.sum * std::exp(other.max - largest);
    max = largest;
  }
};

/// Of one score; `on` is 0 for all classes but the target.
template <class T>
BELLOWS_HOST_DEVICE T softmax_gradient_of(T x, T log_sum, T on, T off, T scale) {
  return scale == 0 ? T(0) : (std::exp(x - log_sum) - off - on) * scale;
}

}  // namespace bellows::kernels
