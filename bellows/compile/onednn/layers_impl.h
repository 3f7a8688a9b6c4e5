#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "bellows/compile/onednn/kernel_impl.h"

/// Each returns nothing where oneDNN has no fast code. Images are dense and channels last; vectors are fp32.
namespace bellows::compile_detail::onednn {

struct Convolution {
  memory::dims input, weight, output;  ///< weight: O, I, H, W; of groups, if there are any: G, O/G, I/G, H, W
  memory::dims stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
  bool transposed = false;  ///< weight: from input's channels to the result's all the same
  bool wide = false;        ///< of images in bf16: the weight's gradient is fp32

  memory::data_type gradient_type() const { return wide ? memory::data_type::f32 : type; }
};

/// What is done to each element of a result before it is written.
struct PostOp {
  enum class Kind : uint8_t { relu, gelu, gelu_tanh, tanh, sigmoid, silu, add } kind = Kind::relu;
  bool is_add() const { return kind == Kind::add; }  ///< of a further operand, of the result's order
};
/// Scratch memory from the program's arena, and these operations on a result of this order.
dnnl::primitive_attr attributes(const std::vector<PostOp>& post, const Desc& result);
/// " add relu"
std::string name_of(const std::vector<PostOp>& post);
/// Where what is added comes from: operands from number `next` on.
void add_slots(std::vector<PrimitiveKernel::Slot>& slots, const std::vector<PostOp>& post, const Desc& result,
               int next);

/// A pass of a convolution or linear, and how it likes weights.
struct LayerPass {
  KernelPointer kernel;
  Desc weight;
  /// Factors of a norm are an operand of its own, after the weight; otherwise they are in the packed weight.
  bool scales = false;
};

/// Operands: input, packed weight, bias if there is one, those of post operations. Results: output
std::optional<LayerPass> convolution_forward(const Convolution& shape, const std::vector<PostOp>& post);
/// Operands: output's gradient, packed weight. Results: input's gradient
std::optional<LayerPass> convolution_backward_data(const Convolution& shape);
/// Operands: output's gradient, input. Results: packed weight's gradient, bias' gradient if there is one
std::optional<LayerPass> convolution_backward_weight(const Convolution& shape);

/// input · weight + bias
struct Linear {
  memory::dim rows = 0, inner = 0, columns = 0;
  memory::dim row_stride = 0;  ///< of the input, in elements; its columns lie next to each other
  size_t offset = 0;           ///< of the input's first element, in bytes
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
};
/// Operands and results as convolution_forward's; the weight, packed, is inner × columns.
std::optional<LayerPass> linear_forward(const Linear& shape, const std::vector<PostOp>& post);

/// Whether libtorch's BLAS, on a packed weight, is faster than oneDNN: by figures of MKL on Intel's AVX-512, 6 to 11 % from 64 rows on.
bool prefers_blas(const Linear& shape);
/// A weight's packing, and the product.
struct BlasLinear {
  KernelPointer pack;     ///< Operands: weight. Results: packed weight
  KernelPointer forward;  ///< Operands: input, packed weight, bias if there is one, what is added. Results: output
  size_t packed_bytes = 0;
};
/// Params: adds – to each element of the result, another one
///         strides – of the weight's inner dim and columns; one of them must be 1
std::optional<BlasLinear> blas_linear(const Linear& shape, bool adds, const memory::dims& strides);

/// Whether a matrix product is faster than oneDNN's direct code and the packing of a weight that changes in each call.
bool prefers_product(const Convolution& shape);
/// As their namesakes above, with plain weights.
std::optional<LayerPass> product_forward(const Convolution& shape, const std::vector<PostOp>& post, bool scaled);
std::optional<LayerPass> product_backward_data(const Convolution& shape);
std::optional<LayerPass> product_backward_weight(const Convolution& shape);

struct BatchNorm {
  memory::dims sizes;
  memory::data_type type = memory::data_type::f32;
  double eps = 1e-5, momentum = 0.1;
  bool affine = true, tracked = true;  ///< whether there are weight and bias, and running statistics
  bool relu = false;                   ///< behind it, of a norm that learns
};

/// A pass, and the bytes that forward keeps for backward: its last result, or operand.
struct KeepingPass {
  KernelPointer kernel;
  size_t workspace = 0;
};

/// Operands: x, weight, bias, running mean and variance, which are updated. Results: y, mean, 1/std, with ReLU where it let through
std::optional<KeepingPass> batch_norm_training(const BatchNorm& shape);
/// Operands: as above. Results: y
KernelPointer batch_norm_inference(const BatchNorm& shape);
/// Operands: y's gradient, x, weight, mean, 1/std, with ReLU where it let through. Results: gradients of x, weight, bias
KernelPointer batch_norm_backward(const BatchNorm& shape);
/// Operands: weight, bias, running mean and variance, a convolution's bias if there is one. Results: factor of that convolution's
/// weight, and its bias in place of norm and bias.
KernelPointer batch_norm_folding(const BatchNorm& shape, bool bias);

struct Pooling {
  memory::dims input, output, kernel, stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  dnnl::algorithm algorithm = dnnl::algorithm::pooling_max;
};

std::optional<KeepingPass> pooling_forward(const Pooling& shape, bool training);
std::optional<KeepingPass> pooling_backward(const Pooling& shape);

}  // namespace bellows::compile_detail::onednn
