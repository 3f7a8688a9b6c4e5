#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bellows/quant/affine.h"
#include "bellows/quant/embedding.h"
#include "bellows/quant/operators.h"
#include "bellows/quant/scheme.h"
#include "bellows/tap/op_ref.h"

namespace bellows::quant {

/// How a layer computes with its quantized weight.
enum class Method {
  static_range,  ///< activations are 8-bit integers with a range that calibration has chosen
  dynamic,       ///< activations are 8-bit integers with a scale per row, chosen in each call. Only for linears
  weight_only,   ///< activations stay in floating point; the weight is converted while it is read
};

/// Returns "static", "dynamic" or "weight_only".
const char* name_of(Method method);
/// Throws: c10::ValueError if there is no such method
Method method_of(const std::string& name);

enum class LayerKind { linear, convolution, embedding };

/// Returns "linear", "convolution" or "embedding".
const char* name_of(LayerKind kind);
/// Throws: c10::ValueError if there is no such kind
LayerKind layer_kind(const std::string& name);

/// A layer with a quantized weight.
struct QuantizedLayer {
  std::string name{};       ///< the parameter's name without ".weight", such as "layer1.0.conv1"
  std::string parameter{};  ///< name of the weight, such as "layer1.0.conv1.weight"
  LayerKind kind = LayerKind::linear;
  Method method = Method::static_range;
  /// In the shape of the original weight. Integers of any number of bits take one byte. After pack(), `values` is empty.
  QuantizedTensor weight{};
  PackedWeight packed{};  ///< after pack()
  at::Tensor bias{};      ///< fp32, replaces the bias of the operator, if a norm was folded or the bias was corrected
  std::string norm{};     ///< name of the batch norm that was folded into the weight, or empty
  at::Tensor input_order{};  ///< int64 [n]: column j of the weight belongs to input input_order[j] (GPTQ); undefined: j
  at::Tensor divisors{};     ///< fp32 [n]: the layer divides its input by them (AWQ, SmoothQuant); undefined: by 1
  Parameters input{};        ///< of the activations; with the method dynamic, 1 and 0
  bool input_is_signed = false;
  /// Whether sums that also read the layer's input read its 8-bit values (Options::quantize_sums). Only for convolutions
  /// with the method static_range.
  bool quantizes_sums = false;
  /// fp32 [], of the signed integers that represent the layer's result in attention (Options::quantize_attention). Undefined:
  /// attention that reads the result computes in floating point. Only for linears with the method static_range.
  at::Tensor result_scale{};
  /// Whether operators also read rows of a linear's weight, as of an embedding that shares its weight with the last linear.
  /// For embeddings, it is true.
  bool reads_rows = false;
  EmbeddingRows
      rows{};  ///< after pack(), if `reads_rows`. Shares the integers with `weight` if they have one byte each

  /// Returns the result of the layer, in the dtype of the input.
  /// Params: bias – of the call; may be undefined
  at::Tensor run(const at::Tensor& x, const at::Tensor& bias, const ConvolutionArguments& arguments) const;
  /// Returns rows of the weight, in the dtype of the call's weight. Only with `reads_rows`.
  at::Tensor read_rows(const RowsCall& call) const;
  /// Returns the input as integers. Only for the method static_range.
  QuantizedInput quantized_input(const at::Tensor& x) const;
  /// Arranges the weights of weight-only linears and of embeddings as they are read, so that the layer needs `bits` bits for
  /// a weight of 4 or 8 bits. A weight-only linear that is also an embedding has its weight in both arrangements. Other
  /// layers do not change.
  void pack();
  /// Returns the integers in the shape of the original weight.
  at::Tensor integers() const;
  /// Returns the shape of the original weight.
  std::vector<int64_t> sizes() const;
  /// Returns the bytes of the weight and its parameters in memory.
  int64_t bytes() const;
};

/// An operator call that has the form of a layer.
struct LayerCall {
  LayerKind kind = LayerKind::linear;
  const char* obstacle = nullptr;  ///< why such a layer cannot be quantized, or null
  const at::Tensor* input = nullptr;
  const at::Tensor* weight = nullptr;
  bool transposed = false;  ///< whether `weight` has one column per output, as in mm(x, w.t())
  at::Tensor bias{};        ///< undefined if there is none
  ConvolutionArguments convolution{};
};

/// Returns the call if the operator is a convolution, a linear, or a matmul whose second operand is a dense matrix. Whether `weight` is a
/// parameter is not checked.
/// Params: arguments – of the operator; the result refers to them
std::optional<LayerCall> layer_call(const tap::OpRef& op, std::span<c10::IValue> arguments);

}  // namespace bellows::quant
