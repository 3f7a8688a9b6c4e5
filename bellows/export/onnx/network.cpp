#include <cmath>
#include <limits>

#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/shapes.h"
#include "bellows/kernels/activation.h"

namespace bellows::onnx_export {

namespace {

using c10::ScalarType;

// Matrix multiplications.

void matmul(Call& call) {
  call.result(call.node("MatMul", {call.tensor(0), call.tensor(1)}));
}

/// A matrix whose rows are all dims of a tensor but the last becomes a MatMul of this tensor, without reshapes.
/// Returns: whether it does
bool rows_times(Call& call, size_t x, size_t weight, const std::string& bias) {
  VariedSizes sizes;
  const std::string rows = call.translation().read_rows(call.operand(x), sizes);
  if (rows.empty()) return false;
  std::string y = call.node("MatMul", {rows, call.tensor(weight)});
  if (!bias.empty()) y = call.node("Add", {y, bias});
  sizes.back() = call.sizes(weight).back();
  call.translation().write_rows(call.result_operand(), y, sizes);
  return true;
}

void mm(Call& call) {
  if (!rows_times(call, 0, 1, "")) matmul(call);
}

void addmm(Call& call) {
  const double beta = call.number(3), alpha = call.number(4);
  if (beta == 1 && alpha == 1 && call.rank(0) <= 1 && rows_times(call, 1, 2, call.tensor(0))) return;
  std::vector<Attribute> attributes;
  if (alpha != 1) attributes.push_back({"alpha", alpha});
  if (beta != 1) attributes.push_back({"beta", beta});
  const bool turned = call.translation().shows_transpose(call.operand(2));
  const std::string weight = turned ? call.transposed(2) : call.tensor(2);
  if (turned) attributes.push_back({"transB", int64_t{1}});
  call.result(call.node("Gemm", {call.tensor(1), weight, call.tensor(0)}, attributes));
}

void baddbmm(Call& call) {
  const ScalarType dtype = call.result_dtype();
  const double beta = call.number(3), alpha = call.number(4);
  std::string y = call.node("MatMul", {call.tensor(1), call.tensor(2)});
  if (alpha != 1) y = call.node("Mul", {y, call.constant(alpha, dtype)});
  if (beta == 0) return call.result(y);
  std::string x = call.tensor(0);
  if (beta != 1) x = call.node("Mul", {x, call.constant(beta, dtype)});
  call.result(call.node("Add", {y, x}));
}

void linear(Call& call) {
  std::string y = call.node("MatMul", {call.tensor(0), call.transposed(1)});
  if (call.has(2)) y = call.node("Add", {y, call.tensor(2)});
  call.result(y);
}

// Convolutions and pools.

/// The numbers of an argument for all spatial dims: one number stands for all of them.
std::vector<int64_t> spatial(Call& call, size_t argument, size_t dims) {
  std::vector<int64_t> numbers = call.integers(argument);
  if (numbers.size() == 1) numbers.resize(dims, numbers[0]);
  return numbers;
}

std::vector<int64_t> twice(std::vector<int64_t> pads) {
  pads.insert(pads.end(), pads.begin(), pads.begin() + static_cast<int64_t>(pads.size()));
  return pads;
}

void convolution(Call& call) {
  const size_t dims = call.sizes(1).size() - 2;
  const bool transposed = call.flag(6);
  std::vector<Attribute> attributes{{"kernel_shape", std::vector<int64_t>{}},
                                    {"strides", spatial(call, 3, dims)},
                                    {"pads", twice(spatial(call, 4, dims))},
                                    {"dilations", spatial(call, 5, dims)},
                                    {"group", call.integer(8)}};
  auto& kernel = std::get<std::vector<int64_t>>(attributes[0].value);
  for (size_t i = 0; i < dims; ++i) kernel.push_back(call.fixed_size(1, static_cast<int64_t>(i) + 2));
  if (transposed) attributes.push_back({"output_padding", spatial(call, 7, dims)});
  std::vector<std::string> inputs{call.tensor(0), call.tensor(1)};
  if (call.has(2)) inputs.push_back(call.tensor(2));
  call.result(call.node(transposed ? "ConvTranspose" : "Conv", inputs, attributes));
}

/// Pools need a dim for the batch, which libtorch allows to be absent.
std::string with_batch(Call& call, size_t spatial_dims) {
  const std::string x = call.tensor(0);
  return call.sizes(0).size() == spatial_dims + 2 ? x : call.node("Unsqueeze", {x, call.integers_tensor({0})});
}
std::string without_batch(Call& call, const std::string& y, size_t spatial_dims) {
  return call.sizes(0).size() == spatial_dims + 2 ? y : call.node("Squeeze", {y, call.integers_tensor({0})});
}

std::vector<Attribute> pool_attributes(Call& call, size_t dims) {
  const std::vector<int64_t> kernel = spatial(call, 1, dims);
  std::vector<int64_t> stride = call.has(2) ? spatial(call, 2, dims) : kernel;
  if (stride.empty()) stride = kernel;
  return {{"kernel_shape", kernel}, {"strides", stride}, {"pads", twice(spatial(call, 3, dims))}};
}

size_t pool_dims(Call& call) {
  return call.name().find("3d") != std::string::npos ? 3 : 2;
}

void max_pool(Call& call) {
  const size_t dims = pool_dims(call);
  std::vector<Attribute> attributes = pool_attributes(call, dims);
  attributes.push_back({"dilations", spatial(call, 4, dims)});
  attributes.push_back({"ceil_mode", static_cast<int64_t>(call.flag(5))});
  call.result(without_batch(call, call.node("MaxPool", {with_batch(call, dims)}, attributes), dims));
}

void avg_pool(Call& call) {
  const size_t dims = pool_dims(call);
  if (call.has(6)) call.fail("avg_pool with divisor_override has no mapping", "Multiply the result by a number.");
  std::vector<Attribute> attributes = pool_attributes(call, dims);
  attributes.push_back({"ceil_mode", static_cast<int64_t>(call.flag(4))});
  attributes.push_back({"count_include_pad", static_cast<int64_t>(call.flag(5))});
  call.result(without_batch(call, call.node("AveragePool", {with_batch(call, dims)}, attributes), dims));
}

/// A pool to a fixed size, whose windows all have the same size.
void adaptive_pool(Call& call) {
  const size_t dims = pool_dims(call);
  const bool average = call.name().find("avg") != std::string::npos;
  const std::vector<int64_t> to = spatial(call, 1, dims);
  const bool global = std::all_of(to.begin(), to.end(), [](int64_t size) { return size == 1; });
  std::string y;
  if (global) {
    y = call.node(average ? "GlobalAveragePool" : "GlobalMaxPool", {with_batch(call, dims)});
  } else {
    std::vector<int64_t> kernel;
    for (size_t i = 0; i < dims; ++i) {
      const int64_t from = call.fixed_size(0, call.rank(0) - static_cast<int64_t>(dims - i));
      if (from % to[i] != 0)
        call.fail("an adaptive pool from " + std::to_string(from) + " to " + std::to_string(to[i]) +
                      " elements has windows of different sizes, which have no mapping",
                  "Use a pool with a fixed window.");
      kernel.push_back(from / to[i]);
    }
    y = call.node(average ? "AveragePool" : "MaxPool", {with_batch(call, dims)},
                  {{"kernel_shape", kernel}, {"strides", kernel}});
  }
  call.result(without_batch(call, y, dims));
}

// Norms.

/// A weight of a norm, or a constant where it is absent.
std::string weight_or(Call& call, size_t argument, const std::vector<int64_t>& sizes, double value, ScalarType dtype) {
  if (call.has(argument)) return call.tensor(argument, dtype);
  return call.translation().filled(sizes, value, dtype);
}

std::vector<int64_t> last_sizes(Call& call, size_t argument, size_t dims) {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < dims; ++i)
    sizes.push_back(call.fixed_size(argument, call.rank(argument) - static_cast<int64_t>(dims - i)));
  return sizes;
}

std::string layer_norm_of(Call& call, const std::string& x, size_t dims, const std::vector<int64_t>& sizes,
                          size_t weight, size_t bias, double eps, ScalarType dtype) {
  std::vector<std::string> inputs{x, weight_or(call, weight, sizes, 1, dtype)};
  if (call.has(bias)) inputs.push_back(call.tensor(bias, dtype));
  return call.node("LayerNormalization", inputs, {{"axis", -static_cast<int64_t>(dims)}, {"epsilon", eps}});
}

void layer_norm(Call& call) {
  const std::vector<int64_t> sizes = call.integers(1);
  call.result(0, layer_norm_of(call, call.tensor(0), sizes.size(), sizes, 2, 3, call.number(4), call.dtype(0)));
}

/// x / √(mean(x²) + eps) · weight
std::string rms_norm_of(Call& call, const std::string& x, const std::vector<int64_t>& dims, double eps,
                        ScalarType dtype) {
  const std::string mean =
      call.node("ReduceMean", {call.node("Mul", {x, x})}, {{"axes", dims}, {"keepdims", int64_t{1}}});
  return call.node("Div", {x, call.node("Sqrt", {call.node("Add", {mean, call.constant(eps, dtype)})})});
}

/// The norm of this library: a layer norm, or an RMS norm if it is not centered.
std::string norm_of(Call& call, const std::string& x, int64_t dims, size_t weight, size_t bias, double eps,
                    bool center) {
  const ScalarType dtype = call.dtype(0);
  if (center) return layer_norm_of(call, x, dims, last_sizes(call, 0, dims), weight, bias, eps, dtype);
  std::vector<int64_t> axes;
  for (int64_t i = dims; i > 0; --i) axes.push_back(-i);
  std::string y = rms_norm_of(call, x, axes, eps, dtype);
  if (call.has(weight)) y = call.node("Mul", {y, call.tensor(weight, dtype)});
  if (call.has(bias)) y = call.node("Add", {y, call.tensor(bias, dtype)});
  return y;
}

void own_norm(Call& call) {
  call.result(0, norm_of(call, call.tensor(0), call.integer(1), 2, 3, call.number(4), call.flag(5)));
}

void dropout_norm(Call& call) {
  if (call.number(5) != 0) call.fail("dropout in training has no mapping", "Call eval() before the export.");
  const std::string sum = call.node("Add", {call.tensor(0), call.tensor(1)});
  call.result(1, sum);
  call.result(0, norm_of(call, sum, 1, 2, 3, call.number(6), call.flag(7)));
}

void fused_rms_norm(Call& call) {
  const auto dims = static_cast<int64_t>(call.integers(1).size());
  const double eps = call.has(3) ? call.number(3) : std::numeric_limits<float>::epsilon();
  std::vector<int64_t> axes;
  for (int64_t i = dims; i > 0; --i) axes.push_back(-i);
  std::string y = rms_norm_of(call, call.tensor(0), axes, eps, call.dtype(0));
  if (call.has(2)) y = call.node("Mul", {y, call.tensor(2)});
  call.result(0, y);
}

/// Normalizes with the mean and the variance of the input: a batch norm without running statistics.
void norm_of_batch(Call& call, int64_t channels) {
  const ScalarType dtype = call.dtype(0);
  std::vector<int64_t> dims = all_dims(call.rank(0));
  dims.erase(dims.begin() + 1);
  const Attribute axes{"axes", dims}, keep{"keepdims", int64_t{1}};
  const std::string x = call.tensor(0);
  const std::string centered = call.node("Sub", {x, call.node("ReduceMean", {x}, {axes, keep})});
  const std::string variance = call.node("ReduceMean", {call.node("Mul", {centered, centered})}, {axes, keep});
  std::string y = call.node(
      "Div", {centered, call.node("Sqrt", {call.node("Add", {variance, call.constant(call.number(7), dtype)})})});
  std::vector<int64_t> shape(call.rank(0), 1);
  shape[1] = channels;
  const auto of_channels = [&](size_t argument) {
    return call.node("Reshape", {call.tensor(argument, dtype), call.integers_tensor(shape)});
  };
  if (call.has(1)) y = call.node("Mul", {y, of_channels(1)});
  if (call.has(2)) y = call.node("Add", {y, of_channels(2)});
  call.result(0, y);
}

void batch_norm(Call& call) {
  const int64_t channels = call.fixed_size(0, 1);
  if (call.flag(5)) {
    if (call.has(3)) call.fail("a batch norm in training has no mapping", "Call eval() before the export.");
    norm_of_batch(call, channels);
    return;
  }
  const ScalarType dtype = call.dtype(0), statistics = call.dtype(3);
  call.result(
      0, call.node("BatchNormalization",
                   {call.tensor(0), weight_or(call, 1, {channels}, 1, dtype), weight_or(call, 2, {channels}, 0, dtype),
                    call.tensor(3, statistics), call.tensor(4, statistics)},
                   {{"epsilon", call.number(7)}}));
}

void group_norm(Call& call) {
  const ScalarType dtype = call.dtype(0);
  const int64_t channels = call.fixed_size(0, 1), groups = call.integer(6);
  const std::string x = call.tensor(0);
  const std::string grouped = call.node("Reshape", {x, call.integers_tensor({0, groups, -1})});
  const std::string normalized =
      call.node("InstanceNormalization",
                {grouped, call.translation().filled({groups}, 1, dtype), call.translation().filled({groups}, 0, dtype)},
                {{"epsilon", call.number(7)}});
  std::string y = call.node("Reshape", {normalized, call.node("Shape", {x})});
  std::vector<int64_t> shape(call.rank(0) - 1, 1);
  shape[0] = channels;
  const auto of_channels = [&](size_t argument) {
    return call.node("Reshape", {call.tensor(argument, dtype), call.integers_tensor(shape)});
  };
  if (call.has(1)) y = call.node("Mul", {y, of_channels(1)});
  if (call.has(2)) y = call.node("Add", {y, of_channels(2)});
  call.result(0, y);
}

// Attention and activations.

/// Element [i, j] is true if query i sees key j, that is j ≤ i.
std::string causal_mask(Call& call, const Varied& queries, const Varied& keys) {
  Translation& translation = call.translation();
  const auto range = [&](const Varied& count) {
    return call.node("Range", {translation.builder().integer(0), translation.scalar_of(count, c10::kLong),
                               translation.builder().integer(1)});
  };
  const std::string rows = call.node("Unsqueeze", {range(queries), call.integers_tensor({1})});
  return call.node("LessOrEqual", {call.node("Unsqueeze", {range(keys), call.integers_tensor({0})}), rows});
}

void attention_of(Call& call, const std::string& scores_scale, bool causal, size_t mask) {
  const ScalarType dtype = call.result_dtype();
  const VariedSizes query = call.sizes(0), key = call.sizes(1);
  std::string scores = call.node("MatMul", {call.node("Mul", {call.tensor(0), scores_scale}), call.transposed(1)});
  if (causal) {
    const std::string seen = causal_mask(call, query[query.size() - 2], key[key.size() - 2]);
    scores = call.node("Where", {seen, scores, call.constant(-std::numeric_limits<double>::infinity(), dtype)});
  }
  if (call.has(mask)) {
    if (call.dtype(mask) == c10::kBool)
      scores = call.node("Where",
                         {call.tensor(mask), scores, call.constant(-std::numeric_limits<double>::infinity(), dtype)});
    else
      scores = call.node("Add", {scores, call.tensor(mask, dtype)});
  }
  call.result(0, call.node("MatMul", {call.node("Softmax", {scores}, {{"axis", int64_t{-1}}}), call.tensor(2)}));
}

double attention_scale(Call& call, size_t argument) {
  return call.has(argument) ? call.number(argument) : 1 / std::sqrt(static_cast<double>(call.fixed_size(0, -1)));
}

void flash_attention(Call& call) {
  if (call.number(3) != 0) call.fail("dropout in training has no mapping", "Call eval() before the export.");
  attention_of(call, call.constant(attention_scale(call, 6), call.result_dtype()), call.flag(4), 5);
}

void own_activation(Call& call) {
  const auto kind = static_cast<kernels::Activation>(call.integer(0));
  const ScalarType dtype = call.result_dtype();
  const std::string x = call.tensor(1);
  if (kind == kernels::Activation::swiglu) {
    call.result(call.node("Mul", {call.node("Mul", {x, call.node("Sigmoid", {x})}), call.tensor(2)}));
    return;
  }
  call.result(gelu_of(call, x, dtype, kind == kernels::Activation::gelu_tanh));
}

void dropout(Call& call) {
  if (call.number(1) != 0 && (!call.has(2) || call.flag(2)))
    call.fail("dropout in training has no mapping", "Call eval() before the export.");
  call.result(0, call.tensor(0));
}

constexpr OperatorMapping network_operators[] = {
    {"aten::_adaptive_avg_pool2d", "GlobalAveragePool or AveragePool", adaptive_pool},
    {"aten::_adaptive_avg_pool3d", "GlobalAveragePool or AveragePool", adaptive_pool},
    {"aten::_fused_rms_norm", "ReduceMean, Sqrt, Div, Mul", fused_rms_norm},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "MatMul, Softmax", flash_attention},
    {"aten::adaptive_max_pool2d", "GlobalMaxPool or MaxPool", adaptive_pool},
    {"aten::addmm", "Gemm, or MatMul and Add", addmm},
    {"aten::avg_pool2d", "AveragePool", avg_pool},
    {"aten::avg_pool3d", "AveragePool", avg_pool},
    {"aten::baddbmm", "MatMul, Mul, Add", baddbmm},
    {"aten::bmm", "MatMul", matmul},
    {"aten::convolution", "Conv or ConvTranspose", convolution},
    {"aten::dot", "MatMul", matmul},
    {"aten::linear", "MatMul, Add", linear},
    {"aten::max_pool2d_with_indices", "MaxPool", max_pool},
    {"aten::max_pool3d_with_indices", "MaxPool", max_pool},
    {"aten::mm", "MatMul", mm},
    {"aten::mv", "MatMul", matmul},
    {"aten::native_batch_norm", "BatchNormalization", batch_norm},
    {"aten::native_dropout", "no node", dropout},
    {"aten::native_group_norm", "InstanceNormalization, Mul, Add", group_norm},
    {"aten::native_layer_norm", "LayerNormalization", layer_norm},
    {"bellows::activation", "Erf or Tanh or Sigmoid, Mul, Add", own_activation},
    {"bellows::dropout_norm", "Add, LayerNormalization", dropout_norm},
    {"bellows::norm", "LayerNormalization", own_norm},
};

}  // namespace

std::span<const OperatorMapping> network_mappings() {
  return network_operators;
}

}  // namespace bellows::onnx_export
