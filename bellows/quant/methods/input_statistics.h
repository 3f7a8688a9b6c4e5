#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace bellows::quant {

/// Statistics of the inputs of one layer, from calibration data. The methods that choose quantized weights need no other
/// data of the layer's inputs.
///
/// For a convolution, an input is the patch that one output value uses: a row of the unfolded image.
/// Numerics: products of one batch are computed in fp32 and added up in fp64
/// Cost:     features² · 8 bytes of memory; one matmul [features, tokens] · [tokens, features] per batch
/// Threads:  not thread-safe
class InputStatistics {
 public:
  /// Throws: c10::ValueError if `features` is not positive
  explicit InputStatistics(int64_t features);

  /// Adds the inputs of a batch. An empty batch has no effect.
  /// Params: x – floating-point, [*, features]
  /// Throws: c10::ValueError if the shape does not match, or if a value is NaN, infinite, or too large for its square
  void add(const at::Tensor& x);

  int64_t features() const { return features_; }
  /// Returns the number of inputs.
  int64_t tokens() const { return tokens_; }

  /// Throws (all of these): c10::ValueError if no inputs were added
  at::Tensor second_moment() const;  ///< Σ x xᵀ / tokens, fp64, [features, features]
  at::Tensor mean() const;           ///< fp32, [features]
  at::Tensor mean_abs() const;       ///< mean of |x|, fp32, [features]
  at::Tensor max_abs() const;        ///< maximum of |x|, fp32, [features]

  /// Returns the statistics of x / scales.
  /// Params: scales – [features], positive
  InputStatistics divided_by(const at::Tensor& scales) const;

 private:
  void check_not_empty() const;

  int64_t features_;
  int64_t tokens_ = 0;
  at::Tensor products_, sum_, sum_abs_, max_abs_;
};

/// Returns the mean squared error of a layer's outputs if its weight changes by `difference`.
/// Params: difference – [out, features], the original weight minus its approximation
/// Throws: c10::ValueError if the shape does not match, or if the statistics contain no inputs
double output_error(const at::Tensor& difference, const InputStatistics& inputs);

}  // namespace bellows::quant
