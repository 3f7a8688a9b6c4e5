#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/quant/training/trained_layer.h"

/// Quantization-aware training: linears and convolutions of any model compute with fake-quantized weights and inputs, so
/// that the weights adapt to the rounding of int8. The code of the model does not change.
/// ```
/// const quant::FakeQuantizer quantizer(model);
/// for (const auto& [x, target] : batches) {
///   const quant::FakeQuantizerGuard guard(quantizer);
///   torch::nn::functional::cross_entropy(model.forward(x), target).backward();
///   optimizer.step();
///   optimizer.zero_grad();
/// }
/// const quant::Quantized int8 = quant::quantize(model, {.trained = quantizer.trained_layers()}, {{x}});
/// ```
namespace bellows::quant {

struct FakeQuantizerOptions {
  /// Weight of each new batch in the moving average of a layer's input range, in (0, 1].
  double averaging_constant = 0.01;
  /// Learns the scales of weights and inputs with the gradient of the loss (learned step size). Give learned_steps() to
  /// an optimizer. By default, scales follow from the weights and from the moving average.
  bool learned_steps = false;
  /// Names of layers that stay in floating point, as in Options::skip.
  std::vector<std::string> skip{};
};

/// The state of quantization-aware training: ranges of inputs, and learned steps. It is a handle: copies share the state.
///
/// Weights are symmetric int8 with one scale per output channel. Inputs are uint8 with one scale per tensor: see
/// input_parameters(). Layers are the same as in quantize(), see docs/quantization.md.
/// Numerics: y = (clamp(round(x / scale) + zero_point) − zero_point) · scale. The gradient with respect to x is that of y
///           where x is in range, and 0 elsewhere (straight-through estimator), as in torch.fake_quantize_per_tensor_affine
///           and torch.fake_quantize_per_channel_affine. Losses follow torch.ao's (tests/quant/fake_quantizer_test.cpp).
///           Gradients of learned steps: see learned_fake_quantize()
/// Threads:  thread-safe; forward passes on several threads update the ranges in any order
class FakeQuantizer {
 public:
  /// Throws: c10::ValueError if an option is out of range, if `skip` has a name that no layer has, or if the model has no
  ///         floating-point parameter that can be a layer's weight
  explicit FakeQuantizer(Model model, FakeQuantizerOptions options = {});

  const Model& model() const;
  /// Returns the learned steps, as leaves that require gradients. Empty unless the option is set. Steps of parameters that
  /// turn out not to be layers never receive a gradient. Do not apply weight decay.
  std::vector<at::Tensor> learned_steps() const;
  /// Returns the layers whose inputs were seen, for Options::trained.
  TrainedLayers trained_layers() const;

  /// Returns all tensors that load_state() needs to continue with identical bits, such as "conv1.input_range".
  NamedTensors state() const;
  /// Restores a state. The tensors of learned_steps() stay the same objects.
  /// Throws: c10::ValueError if a tensor belongs to no layer of the model, or has a different shape
  void load_state(const NamedTensors& state);
  /// Combines the ranges of the ranks of a distributed training run, so that they are equal on all ranks. Call it on all ranks
  /// after the forward passes of a step. If all ranks had equal ranges before the step, the result is the moving average of
  /// the range of all their inputs. Ranks without inputs in this step do not change it.
  /// Params: largest – returns the elementwise maximum of the ranks' tensors, fp32 [2 · layers]. May work in place
  /// Throws: c10::ValueError if the option `learned_steps` is set, because learned steps are not exchanged
  void combine_ranges(const std::function<at::Tensor(at::Tensor)>& largest);
  /// Returns the tensors that a training step changes by itself, like running statistics of batch norms.
  std::vector<at::Tensor> buffers() const;

 private:
  friend class FakeQuantizerGuard;
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// While the guard exists, the model's layers compute with fake-quantized weights and inputs on this thread.
///
/// If the model is in training mode, each call updates the range of the layer's inputs. In evaluation mode, ranges do not
/// change, and layers without a range stay in floating point. Recomputation in backward does not update ranges.
/// Threads: as tap::ArgumentTapGuard
/// Cost:    per call of a layer about ten operators, and two passes over the input and the weight. Compiled functions run
///          these operators in generated code (docs/quantization.md)
/// Changes: nothing after the guard has ended. Without a guard, the model is bit-identical to plain libtorch
class FakeQuantizerGuard {
 public:
  explicit FakeQuantizerGuard(const FakeQuantizer& quantizer);
  ~FakeQuantizerGuard();
  FakeQuantizerGuard(const FakeQuantizerGuard&) = delete;
  FakeQuantizerGuard& operator=(const FakeQuantizerGuard&) = delete;

 private:
  std::shared_ptr<void> tap_;
};

}  // namespace bellows::quant
