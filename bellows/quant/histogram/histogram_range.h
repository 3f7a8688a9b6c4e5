#pragma once

#include <utility>

#include "bellows/quant/histogram/histogram.h"
#include "bellows/quant/scheme.h"

namespace bellows::quant {

/// Returns the range whose quantization has the smallest mean squared error, by a search over 128 shares of the observed
/// range for each end.
std::pair<double, double> mse_range(const Histogram& values, const Scheme& scheme);

/// Returns the range in [−t, t] with the smallest Kullback–Leibler divergence of the quantized distribution from the
/// distribution that saturates at t.
std::pair<double, double> entropy_range(const Histogram& values, const Scheme& scheme);

}  // namespace bellows::quant
