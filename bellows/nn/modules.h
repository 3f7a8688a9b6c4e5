#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "bellows/nn/norm.h"

/// The component's layers as torch::nn modules, for models that are written in torch::nn. Names of parameters, defaults and
/// initial values are PyTorch's, so state dicts of both fit each other. Heavy: not part of bellows/nn.h.
namespace bellows::nn {

/// layer_norm() with its parameters `weight` and `bias`. Drop-in for torch::nn::LayerNorm.
/// Shapes:   x [*, normalized_shape] → as x
/// Throws:   c10::ValueError – no or a negative normalized_shape, an eps that is not above 0; in forward as layer_norm()
/// Ref:      torch.nn.LayerNorm
class LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl> {
 public:
  explicit LayerNormImpl(LayerNormOptions options_);
  /// Over the last dim, of `features` values.
  explicit LayerNormImpl(int64_t features) : LayerNormImpl(LayerNormOptions{.normalized_shape = {features}}) {}

  at::Tensor forward(const at::Tensor& x) { return layer_norm(x, options.normalized_shape, weight, bias, options.eps); }
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  LayerNormOptions options;
  at::Tensor weight, bias;  ///< [normalized_shape]; undefined without elementwise_affine
};
TORCH_MODULE(LayerNorm);

/// rms_norm() with its parameter `weight`.
/// Shapes:   x [*, normalized_shape] → as x
/// Throws:   c10::ValueError – no or a negative normalized_shape, an eps that is not above 0; in forward as rms_norm()
/// Ref:      torch.nn.RMSNorm
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(RMSNormOptions options_);
  /// Over the last dim, of `features` values.
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
