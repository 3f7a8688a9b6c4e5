#pragma once

#include "bellows/kernels/host_device.h"

// Scalar formulas of LayerNorm and RMSNorm, shared by kernels/ref and kernels/cuda.
namespace bellows::kernels {

/// Statistics of one row. The mean is 0 for RMSNorm.
template <class T>
struct NormOfRow {
  T mean, rstd;

  BELLOWS_HOST_DEVICE T normalized(T x) const { return (x - mean) * rstd; }
  BELLOWS_HOST_DEVICE T value(T x, T weight, T bias) const { return (x - mean) * (rstd * weight) + bias; }
  /// Params: g       – gradient of the normalized value
  ///         mean_g  – mean of g over the row; 0 for RMSNorm
  ///         mean_gx – mean of g · normalized over the row
  BELLOWS_HOST_DEVICE T gradient(T x, T g, T mean_g, T mean_gx) const {
    return rstd * (g - mean_g - normalized(x) * mean_gx);
  }
};

}  // namespace bellows::kernels
