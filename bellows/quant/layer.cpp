#include "bellows/quant/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <array>
#include <utility>

namespace bellows::quant {

namespace {

constexpr std::array<std::pair<Method, const char*>, 3> method_names = {
    {{Method::static_range, "static"}, {Method::dynamic, "dynamic"}, {Method::weight_only, "weight_only"}}};

at::Tensor floating_point_run(const QuantizedLayer& layer, const at::Tensor& x, const at::Tensor& bias,
                              const ConvolutionArguments& arguments) {
  if (layer.packed.data.defined()) return weight_only_linear(x, layer.packed, bias);
  const at::Tensor weight = layer.weight.dequantize(x.scalar_type());
  const std::optional<at::Tensor> added =
      bias.defined() ? std::optional<at::Tensor>(bias.to(x.scalar_type())) : std::nullopt;
  if (layer.kind == LayerKind::linear) return at::linear(x, weight, added);
  const std::vector<int64_t> none(arguments.stride.size(), 0);
  return at::convolution(x, weight, added, arguments.stride, arguments.padding, arguments.dilation,
                         /*transposed=*/false, none, arguments.groups);
}

/// Without a call of libtorch if nothing changes.
at::Tensor cast_to(const at::Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == dtype ? x : x.to(dtype);
}

/// The scale of a row is applied behind the matmul, so that oneDNN needs only one scale for the input.
at::Tensor dynamic_run(const QuantizedLayer& layer, const at::Tensor& x, const at::Tensor& bias) {
  const QuantizedInput rows = quantize_rows(x, layer.input.zero_point);
  const QuantizedInput unscaled{rows.values, layer.input.scale, rows.zero_point};
  const at::Tensor sums = quantized_linear(unscaled, layer.weight.values, layer.weight.parameters.scale, {});
  const at::Tensor result = sums * rows.scale;
  return cast_to(bias.defined() ? result + bias : result, x.scalar_type());
}

at::Tensor bias_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

/// Params: groups – index of this argument
LayerCall convolution_with(std::span<c10::IValue> arguments, size_t groups) {
  return {.kind = LayerKind::convolution,
          .input = &arguments[0].toTensor(),
          .weight = &arguments[1].toTensor(),
          .bias = bias_of(arguments[2]),
          .convolution = {.stride = arguments[3].toIntVector(),
                          .padding = arguments[4].toIntVector(),
                          .dilation = arguments[5].toIntVector(),
                          .groups = arguments[groups].toInt()}};
}

std::optional<LayerCall> convolution_call(std::span<c10::IValue> arguments) {
  LayerCall call = convolution_with(arguments, 8);
  if (arguments[6].toBool()) call.obstacle = "transposed convolutions are not supported";
  return call;
}

/// Of aten::conv2d. Images without a batch dim are left to libtorch.
std::optional<LayerCall> convolution_2d_call(std::span<c10::IValue> arguments) {
  if (arguments[0].toTensor().dim() != 4) return {};
  return convolution_with(arguments, 6);
}

bool is_one(const c10::IValue& value) {
  return value.toScalar().equal(1);
}

/// The operators that can be layers. Comparing handles is faster than comparing names.
struct LayerOperators {
  static c10::OperatorHandle named(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  }
  c10::OperatorHandle convolution = named("aten::convolution"),
                      traced_convolution = named("aten::_convolution"),        // of traced TorchScript
      convolution_2d = named("aten::conv2d"), matmul = named("aten::matmul"),  // if they arrive whole
      mm = named("aten::mm"), addmm = named("aten::addmm"), linear = named("aten::linear");
};

}  // namespace

const char* name_of(Method method) {
  return method_names[static_cast<size_t>(method)].second;
}

Method method_of(const std::string& name) {
  for (const auto& [method, known] : method_names) {
    if (name == known) return method;
  }
  TORCH_CHECK_VALUE(false, "quantization: there is no method \"", name, "\". Expected static, dynamic or weight_only.");
}

const char* name_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::linear:
      return "linear";
    case LayerKind::convolution:
      return "convolution";
    case LayerKind::embedding:
      break;
  }
  return "embedding";
}

LayerKind layer_kind(const std::string& name) {
  for (const LayerKind kind : {LayerKind::linear, LayerKind::convolution, LayerKind::embedding}) {
    if (name == name_of(kind)) return kind;
  }
  TORCH_CHECK_VALUE(false, "quantization: there is no kind of layer \"", name,
                    "\". Expected linear, convolution or embedding.");
}

at::Tensor QuantizedLayer::run(const at::Tensor& given, const at::Tensor& call_bias,
                               const ConvolutionArguments& arguments) const {
  const at::Tensor x = input_order.defined() ? given.index_select(-1, input_order) : given;
  const at::Tensor& added = bias.defined() ? bias : call_bias;
  if (method != Method::static_range) {
    const at::Tensor divided = divisors.defined() ? x / divisors.to(x.scalar_type()) : x;
    return method == Method::dynamic ? dynamic_run(*this, divided, added)
                                     : floating_point_run(*this, divided, added, arguments);
  }
  const QuantizedInput activations = quantized_input(x);
  const at::Tensor& scale = weight.parameters.scale;
  const at::Tensor result = kind == LayerKind::linear
                                ? quantized_linear(activations, weight.values, scale, added)
                                : quantized_convolution(activations, weight.values, scale, added, arguments);
  return cast_to(result, x.scalar_type());
}

at::Tensor QuantizedLayer::read_rows(const RowsCall& call) const {
  const at::ScalarType dtype = call.weight->scalar_type();
  return rows.values.defined() ? rows.read(call, dtype) : embedding_rows(weight).read(call, dtype);
}

QuantizedInput QuantizedLayer::quantized_input(const at::Tensor& x) const {
  const at::Tensor step = divisors.defined() ? input.scale * divisors : input.scale;
  return {quantize_activations(x, step, input.zero_point, input_is_signed), input.scale, input.zero_point};
}

void QuantizedLayer::pack() {
  if (reads_rows && !rows.values.defined() && weight.values.numel() > 0) rows = embedding_rows(weight);
  if (kind == LayerKind::embedding && rows.halves) weight.values = at::empty({0}, weight.values.options());
  const Granularity granularity = weight.scheme.granularity;
  if (method != Method::weight_only || kind != LayerKind::linear || packed.data.defined() ||
      granularity == Granularity::tensor)
    return;
  packed = pack_weight(weight);
  weight.values = at::empty({0}, weight.values.options());
}

at::Tensor QuantizedLayer::integers() const {
  if (packed.data.defined()) return unpack_weight(packed);
  return kind == LayerKind::embedding && rows.halves ? rows.integers() : weight.values;
}

std::vector<int64_t> QuantizedLayer::sizes() const {
  if (packed.data.defined()) return {packed.outputs, packed.inputs};
  if (kind == LayerKind::embedding && rows.halves) return {rows.values.size(0), rows.columns()};
  return weight.values.sizes().vec();
}

int64_t QuantizedLayer::bytes() const {
  if (kind == LayerKind::embedding && rows.values.defined()) return rows.bytes();
  if (packed.data.defined()) return static_cast<int64_t>(packed.data.nbytes()) + (reads_rows ? rows.bytes() : 0);
  const Parameters& parameters = weight.parameters;
  return static_cast<int64_t>(weight.values.nbytes() + parameters.scale.nbytes() +
                              (weight.scheme.has_zero_points() ? parameters.zero_point.nbytes() : 0));
}

std::optional<LayerCall> layer_call(const tap::OpRef& op, std::span<c10::IValue> arguments) {
  static const auto* const known = new LayerOperators;  // never destroyed: threads may outlive static objects
  const c10::OperatorHandle& handle = op.handle();
  if (handle == known->convolution || handle == known->traced_convolution) return convolution_call(arguments);
  if (handle == known->convolution_2d) return convolution_2d_call(arguments);
  const bool is_rows = handle == known->matmul && arguments[1].toTensor().dim() == 2;
  if (handle == known->mm || is_rows)
    return LayerCall{.input = &arguments[0].toTensor(), .weight = &arguments[1].toTensor(), .transposed = true};
  if (handle == known->linear) {
    return LayerCall{
        .input = &arguments[0].toTensor(), .weight = &arguments[1].toTensor(), .bias = bias_of(arguments[2])};
  }
  if (handle == known->addmm && is_one(arguments[3]) && is_one(arguments[4]) && arguments[0].toTensor().dim() == 1) {
    return LayerCall{.input = &arguments[1].toTensor(),
                     .weight = &arguments[2].toTensor(),
                     .transposed = true,
                     .bias = arguments[0].toTensor()};
  }
  return {};
}

}  // namespace bellows::quant
