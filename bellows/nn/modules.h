#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "bellows/nn/norm.h"

/// Norms as torch::nn modules. Parameter names, defaults and initial values are the same as in PyTorch, so state dicts
/// are interchangeable. bellows/nn.h does not include this header, because this header includes torch::nn.
namespace bellows::nn {

/// layer_norm() as a module with the parameters `weight` and `bias`. It is a drop-in replacement for
/// torch::nn::LayerNorm.
/// Shapes: x [*, normalized_shape] → same shape
/// Throws: c10::ValueError if normalized_shape is empty or has a negative size, or if eps is not above 0; forward()
///         throws like layer_norm()
/// Ref:    torch.nn.LayerNorm
class LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl> {
 public:
  explicit LayerNormImpl(LayerNormOptions options_);
  /// Normalizes over the last dim, which has `features` values.
  explicit LayerNormImpl(int64_t features) : LayerNormImpl(LayerNormOptions{.normalized_shape = {features}}) {}

  at::Tensor forward(const at::Tensor& x) { return layer_norm(x, options.normalized_shape, weight, bias, options.eps); }
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  LayerNormOptions options;
  at::Tensor weight, bias;  ///< [normalized_shape]; undefined without elementwise_affine
};
TORCH_MODULE(LayerNorm);

/// rms_norm() as a module with the parameter `weight`.
/// Shapes: x [*, normalized_shape] → same shape
/// Throws: c10::ValueError if normalized_shape is empty or has a negative size, or if eps is not above 0; forward()
///         throws like rms_norm()
/// Ref:    torch.nn.RMSNorm
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(RMSNormOptions options_);
  /// Normalizes over the last dim, which has `features` values.
  explicit RMSNormImpl(int64_t features) : RMSNormImpl(RMSNormOptions{.normalized_shape = {features}}) {}

  at::Tensor forward(const at::Tensor& x) { return rms_norm(x, options.normalized_shape, weight, options.eps); }
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  RMSNormOptions options;
  at::Tensor weight;  ///< [normalized_shape]; undefined without elementwise_affine
};
TORCH_MODULE(RMSNorm);

}  // namespace bellows::nn
