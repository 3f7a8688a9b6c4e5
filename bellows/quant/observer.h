#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "bellows/quant/affine.h"
#include "bellows/quant/scheme.h"

namespace bellows::quant {

/// How an observer chooses the range that the integers cover. All other values saturate.
enum class RangeMethod {
  min_max,         ///< the smallest and the largest value
  moving_average,  ///< an exponential moving average of the smallest and the largest value of each batch
  percentile,      ///< the range that contains a share of the values
  mse,             ///< the range with the smallest mean squared error
  entropy,         ///< the range with the smallest Kullback–Leibler divergence between the distributions
};

struct ObserverOptions {
  RangeMethod method = RangeMethod::min_max;
  double averaging_constant = 0.01;  ///< moving_average: weight of each new batch, in (0, 1]
  double percentile = 0.9999;        ///< percentile: the share of the values inside of the range, in (0, 1]
};

/// An exponential moving average of the smallest and the largest value of each batch. The first batch sets the range.
/// No value is read on the host, and the tensor stays the same object, so compiled steps can update it.
/// Threads: not thread-safe
/// Ref:     torch.ao.quantization.observer.MovingAverageMinMaxObserver
class MovingRange {
 public:
  /// Params: channels – shape of the range's bounds: {} for a whole tensor
  explicit MovingRange(at::IntArrayRef channels = {}, c10::Device device = c10::kCPU);
  /// Params: low, high – fp32, of one batch
  ///         weight    – of this batch, in (0, 1]
  void update(const at::Tensor& low, const at::Tensor& high, double weight);
  at::Tensor low() const { return bounds_.select(0, 0); }
  at::Tensor high() const { return bounds_.select(0, 1); }
  /// [2, channels]: the lower and the upper bounds. [∞, −∞] before the first batch.
  const at::Tensor& bounds() const { return bounds_; }

 private:
  at::Tensor bounds_;
};

/// Observes values during calibration and chooses the parameters of their quantization.
/// Threads: not thread-safe
class Observer {
 public:
  virtual ~Observer() = default;
  /// Adds the values of a batch. An empty batch has no effect.
  /// Throws: c10::ValueError if a value is NaN or infinite, or if the number of channels changes
  virtual void observe(const at::Tensor& x) = 0;
  /// Throws: c10::ValueError if nothing was observed
  virtual Parameters parameters() const = 0;
};

/// Returns an observer.
/// Throws: c10::ValueError if an option is out of range. The granularity must be tensor or channel, because tokens and
///         groups get their parameters when the values are known. percentile, mse and entropy need granularity tensor
/// Ref:    min_max and moving_average: the ranges are equal to those of torch.ao.quantization's MinMaxObserver,
///         PerChannelMinMaxObserver and MovingAverageMinMaxObserver. entropy: Migacz, "8-bit inference with TensorRT", 2017
std::unique_ptr<Observer> make_observer(const Scheme& scheme, const ObserverOptions& options = {});

/// Returns "min_max", "moving_average", "percentile", "mse" or "entropy".
const char* name_of(RangeMethod method);
/// Throws: c10::ValueError if there is no such method
RangeMethod range_method(const std::string& name);

}  // namespace bellows::quant
