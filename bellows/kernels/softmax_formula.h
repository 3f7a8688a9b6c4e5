#pragma once

#include <cmath>

#include "bellows/kernels/host_device.h"

// Scalar formulas of softmax, shared by kernels/ref and kernels/cuda.
namespace bellows::kernels {

/// The maximum of the values x that were added, and the sum of e^(x − max). The sum is 0 if there are no values or if
/// all values are −∞. NaN propagates.
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
    if (largest == -static_cast<T>(INFINITY)) {  // e^(max − largest) would be NaN
      sum += other.sum;
      return;
    }
    sum = sum * std::exp(max - largest) + other.sum * std::exp(other.max - largest);
    max = largest;
  }
};

/// Returns the gradient of one logit. `on` must be 0 for all classes except the target.
template <class T>
BELLOWS_HOST_DEVICE T softmax_gradient_of(T x, T log_sum, T on, T off, T scale) {
  return scale == 0 ? T(0) : (std::exp(x - log_sum) - off - on) * scale;
}

}  // namespace bellows::kernels
