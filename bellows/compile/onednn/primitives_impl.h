#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail::onednn {

using Desc = dnnl::memory::desc;
using dnnl::memory;

const dnnl::engine& engine();
/// Returns attributes for primitives whose scratch memory is in the program's arena.
dnnl::primitive_attr attributes();
/// Returns f32, bf16, s8 or u8, or undef if the type is not supported here.
memory::data_type data_type(const graph::Geometry& geometry);
bool is_floating(memory::data_type type);
/// Returns the geometry as a oneDNN descriptor. The offset is not included.
Desc desc_of(const graph::Geometry& geometry);
/// Returns the descriptor of a channels-last image.
/// Params: dims – N, C, H, W
Desc channels_last(const memory::dims& dims, memory::data_type type);
Desc vector_of(memory::dim size);
inline memory::dims dims_of(at::IntArrayRef sizes) {
  return {sizes.begin(), sizes.end()};
}

/// Runs a primitive. Each slot describes where an argument of the primitive comes from.
class PrimitiveKernel : public graph::Kernel {
 public:
  enum class Place : uint8_t { operand, result, scratch };
  struct Slot {
    int arg = 0;  ///< DNNL_ARG_…
    Desc desc{};
    Place place = Place::operand;
    int index = 0;      ///< index of the operand or result
    size_t offset = 0;  ///< in bytes
  };

  /// Params: scratchpad – scratch memory of the primitive. It follows the scratch memory of the slots
  ///         identity   – see graph::Kernel::identity()
  PrimitiveKernel(std::string name, dnnl::primitive primitive, std::vector<Slot> slots, const Desc& scratchpad,
                  std::string identity = "");

  std::string name() const override { return name_; }
  std::string identity() const override { return identity_; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }

 private:
  std::string name_, identity_;
  dnnl::primitive primitive_;
  std::vector<Slot> slots_;
  std::vector<memory> memories_;  ///< one per slot; their pointers change with each call
  dnnl::stream stream_;
  size_t scratch_bytes_ = 0;
};

using KernelPointer = std::shared_ptr<const graph::Kernel>;

/// Creates a kernel that copies memory into a different memory order.
/// Params: offset – offset of the source, in bytes
///         scaled – mask of the dims along which elements are multiplied by factors, which are the second operand; 0 if
///                  elements are not multiplied
KernelPointer make_reorder(const Desc& from, const Desc& to, const char* what, size_t offset = 0, int scaled = 0);

/// Whether an implementation is fast, such as "brgconv:avx512_core". oneDNN's reference implementation is slower than
/// libtorch.
template <class PrimitiveDesc>
bool is_fast(const PrimitiveDesc& desc) {
  if (!desc) return false;
  const std::string how = desc.impl_info_str();
  return how.find("ref") == std::string::npos;
}

/// An operation on each element of a result before the element is written.
struct PostOp {
  enum class Kind : uint8_t { relu, gelu, gelu_tanh, tanh, sigmoid, silu, add } kind = Kind::relu;
  bool is_add() const { return kind == Kind::add; }  ///< adds another operand, which has the memory order of the result
};
/// Adds an activation, that is, an operation other than an addition.
void append_activation(dnnl::post_ops& ops, const PostOp& activation);
/// Returns attributes with these operations on a result of this memory order. Scratch memory is in the program's arena.
dnnl::primitive_attr attributes(const std::vector<PostOp>& post, const Desc& result);
/// Returns the names of the operations, such as " add relu".
std::string name_of(const std::vector<PostOp>& post);
/// Adds slots for the operands that the operations add.
/// Params: next – index of the first of these operands
void add_slots(std::vector<PrimitiveKernel::Slot>& slots, const std::vector<PostOp>& post, const Desc& result,
               int next);

// Layers as kernels. Each function returns nothing if oneDNN has no fast implementation. Images must be dense and
// channels last. Vectors are fp32.

struct Convolution {
  memory::dims input, weight, output;  ///< weight: O, I, H, W; with groups: G, O/G, I/G, H, W
  memory::dims stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
  bool transposed = false;  ///< the weight still maps input channels to output channels
  bool wide = false;        ///< for bf16 images: the gradient of the weight is fp32

  memory::data_type gradient_type() const { return wide ? memory::data_type::f32 : type; }
};

/// One pass of a convolution or linear, and the weight layout that it requires.
struct LayerPass {
  KernelPointer kernel;
  Desc weight;
  /// If true, the factors of a norm are a separate operand after the weight. If false, the packed weight includes the
  /// factors.
  bool scales = false;
};

/// Operands: input, packed weight, bias if there is one, operands of post operations. Results: output
std::optional<LayerPass> convolution_forward(const Convolution& shape, const std::vector<PostOp>& post);
/// Operands: gradient of the output, packed weight. Results: gradient of the input
std::optional<LayerPass> convolution_backward_data(const Convolution& shape);
/// Operands: gradient of the output, input. Results: gradient of the packed weight, gradient of the bias if there is
/// one
std::optional<LayerPass> convolution_backward_weight(const Convolution& shape);

/// A linear: input · weight + bias.
struct Linear {
  memory::dim rows = 0, inner = 0, columns = 0;
  memory::dim row_stride = 0;  ///< of the input, in elements; elements of a row are adjacent
  size_t offset = 0;           ///< of the input's first element, in bytes
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
};
/// A linear as two kernels: one packs the weight once, the other computes the linear.
struct PackingLinear {
  KernelPointer pack;     ///< Operands: weight. Results: packed weight
  KernelPointer forward;  ///< Operands: input, packed weight, and others
  size_t packed_bytes = 0;
};
/// Operands and results are the same as for convolution_forward. The packed weight has the sizes inner × columns.
std::optional<LayerPass> linear_forward(const Linear& shape, const std::vector<PostOp>& post);

/// The integers of a quantized layer. An 8-bit value represents (value − zero point) · scale. Scales are fp32, zero points
/// int32.
struct Integers {
  memory::data_type input = memory::data_type::u8, output = memory::data_type::f32;  ///< output: f32, s8 or u8
  bool input_zero_point = false, output_zero_point = false;
  /// u8 or s8: the operand that a post operation of a convolution adds consists of integers with this scale and the zero
  /// point 0. undef: it is fp32.
  memory::data_type added = memory::data_type::undef;
  float added_scale = 1;

  bool quantizes_output() const { return output != memory::data_type::f32; }
};
/// A linear or convolution with an int8 input and weight. `shape.type` is ignored. Sums are exact, and everything after
/// them is computed in fp32.
/// Operands: input, packed weight, scale of the input, scales of the weight (one per output channel); zero point of the input
///           if there is one; bias if there is one (fp32); scale and zero point of the output as far as there are; operands of
///           post operations (fp32, or as in Integers::added). Results: output
std::optional<LayerPass> quantized_linear_forward(const Linear& shape, const Integers& integers,
                                                  const std::vector<PostOp>& post);
/// Returns the name of a kernel, such as "int8 linear gelu quantize vnni".
std::string name_of_layer(const char* kind, const std::vector<PostOp>& post, const Integers& integers,
                          const std::string& how);
/// Whether integer_linear() is faster than oneDNN, or oneDNN's results are not exact. In measurements on Intel AVX-512 with VNNI, it is 1.3× to 1.5× as fast with 14
/// rows, and equally fast with 128 rows.
bool prefers_integer_linear(const Linear& shape);
/// Uses kernels/int8_linear.h. The weight is [columns, inner]. Operands and results are those of quantized_linear_forward.
PackingLinear integer_linear(const Linear& shape, const Integers& integers, const std::vector<PostOp>& post);
std::optional<LayerPass> quantized_convolution_forward(const Convolution& shape, const Integers& integers,
                                                       const std::vector<PostOp>& post);

/// Whether libtorch's BLAS with a packed weight is faster than oneDNN. In measurements with MKL on Intel AVX-512, BLAS
/// is 6 to 11 % faster with at least 64 rows.
bool prefers_blas(const Linear& shape);
/// Operands: input, packed weight, bias if there is one, added operand. Results: output.
/// Params: adds    – whether another operand is added to the result
///         strides – strides of the weight's inner dim and of its columns; one of them must be 1
std::optional<PackingLinear> blas_linear(const Linear& shape, bool adds, const memory::dims& strides);
/// The same in fp32 with kernels::packed_matmul(), whose results for a row do not depend on the number of rows.
/// Params: strides – strides of the weight's inner dim and of its columns
///         offset  – of the weight's first element, in bytes
PackingLinear row_linear(const Linear& shape, bool adds, const memory::dims& strides, size_t offset);

/// A batch of matmuls with changing operands: left · right. All dims are batch, rows, columns.
struct BatchedMatmul {
  Desc left, right, result;
  size_t left_offset = 0, right_offset = 0;  ///< of the first elements, in bytes
};
/// Whether oneDNN is faster than libtorch's batched matmul. In measurements on Intel AVX-512, oneDNN is 1.0× to 1.3×
/// as fast as MKL if the elements of a row of the left matrices are adjacent, and 0.8× to 1.1× as fast if the matrices
/// are transposed. On processors of other vendors, MKL does not use its fast code.
bool prefers_primitive(const BatchedMatmul& shape);
/// Operands: left, right. Results: result
KernelPointer batched_matmul(const BatchedMatmul& shape);

/// Whether a matmul is faster than a oneDNN convolution whose weight must be packed in each call.
bool prefers_product(const Convolution& shape);
/// Like the convolution_… functions above, but these functions compute matmuls on weights that are not packed.
std::optional<LayerPass> product_forward(const Convolution& shape, const std::vector<PostOp>& post, bool scaled);
std::optional<LayerPass> product_backward_data(const Convolution& shape);
std::optional<LayerPass> product_backward_weight(const Convolution& shape);

struct BatchNorm {
  memory::dims sizes;
  memory::data_type type = memory::data_type::f32;
  double eps = 1e-5, momentum = 0.1;
  bool affine = true, tracked = true;  ///< whether there are weight and bias; whether there are running statistics
  bool relu = false;                   ///< a ReLU follows, in training mode
};

/// Own kernels (kernels/batch_norm.h): oneDNN's sums are fp32 and lose digits on large images.
/// Operands: x, weight, bias, running mean and running variance. The running statistics are updated. Results: y, mean,
/// 1/std; with ReLU also one fp32 vector for backward
KernelPointer batch_norm_training(const BatchNorm& shape);
/// A oneDNN primitive. Operands: the same as for batch_norm_training. Results: y
KernelPointer batch_norm_inference(const BatchNorm& shape);
/// Operands: gradient of y, x, weight, mean, 1/std; with ReLU also the vector of batch_norm_training. Results: gradients of
/// x, weight and bias
KernelPointer batch_norm_backward(const BatchNorm& shape);
/// Operands: weight, bias, running mean, running variance, bias of the convolution if there is one. Results: the factor
/// by which the convolution's weight is multiplied, and the bias that replaces the convolution's bias and the norm
KernelPointer batch_norm_folding(const BatchNorm& shape, bool bias);

struct Pooling {
  memory::dims input, output, kernel, stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  dnnl::algorithm algorithm = dnnl::algorithm::pooling_max;
};

/// A kernel, and the size of the workspace that connects forward and backward. The workspace is the last result of
/// forward and the last operand of backward.
struct KeepingPass {
  KernelPointer kernel;
  size_t workspace = 0;
};

std::optional<KeepingPass> pooling_forward(const Pooling& shape, bool training);
std::optional<KeepingPass> pooling_backward(const Pooling& shape);

}  // namespace bellows::compile_detail::onednn
