#pragma once

#include "bellows/kernels/host_device.h"

// LayerNorm and RMSNorm of one value, once, in scalar C++: what kernels/ref computes, and what kernels/cuda computes on the
// device.
namespace bellows::kernels {

/// What the values of a row share. RMSNorm has no mean: 0.
template <class T>
struct NormOfRow {
  T mean, rstd;

  BELLOWS_HOST_DEVICE T normalized(T x) const { return (x - mean) * rstd; }
  BELLOWS_HOST_DEVICE T value(T x, T weight, T bias) const { return (x - mean) * (rstd * weight) + bias; }
  /// Params: g – the gradient of the normalized value; mean_g, mean_gx – of g (RMSNorm: 0) and g · normalized over the row
  BELLOWS_HOST_DEVICE T gradient(T x, T g, T mean_g, T mean_gx) const {
    return rstd * (g - mean_g - normalized(x) * mean_gx);
  }
};

}  // namespace bellows::kernels
