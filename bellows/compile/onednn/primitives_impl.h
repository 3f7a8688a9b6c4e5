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
/// Attributes with scratch memory in the program's arena.
dnnl::primitive_attr attributes();
/// Returns: f32 or bf16; undef for types that are not supported here
memory::data_type data_type(const graph::Geometry& geometry);
/// The geometry as oneDNN descriptor, without its offset.
Desc desc_of(const graph::Geometry& geometry);
/// A channels-last image.
/// Params: dims – N, C, H, W
Desc channels_last(const memory::dims& dims, memory::data_type type);
Desc vector_of(memory::dim size);
inline memory::dims dims_of(at::IntArrayRef sizes) {
  return {sizes.begin(), sizes.end()};
}

/// A primitive, and the source of each of its arguments in a call.
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

  /// Params: scratchpad – the primitive's own scratch memory; it comes last
  PrimitiveKernel(std::string name, dnnl::primitive primitive, std::vector<Slot> slots, const Desc& scratchpad);

  std::string name() const override { return name_; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }

 private:
  std::string name_;
  dnnl::primitive primitive_;
  std::vector<Slot> slots_;
  std::vector<memory> memories_;  ///< one per slot; their pointers change with each call
  dnnl::stream stream_;
  size_t scratch_bytes_ = 0;
};

using KernelPointer = std::shared_ptr<const graph::Kernel>;

/// Copies memory to another order.
/// Params: offset – of the source, in bytes
///         scaled – mask of the dims along which elements are multiplied by factors, the second operand; 0: none
KernelPointer make_reorder(const Desc& from, const Desc& to, const char* what, size_t offset = 0, int scaled = 0);

/// True for implementations such as "brgconv:avx512_core". The reference implementation is slower than libtorch's own
/// code.
template <class PrimitiveDesc>
bool is_fast(const PrimitiveDesc& desc) {
  if (!desc) return false;
  const std::string how = desc.impl_info_str();
  return how.find("ref") == std::string::npos;
}

/// An operation on each element of a result before it is written.
struct PostOp {
  enum class Kind : uint8_t { relu, gelu, gelu_tanh, tanh, sigmoid, silu, add } kind = Kind::relu;
  bool is_add() const { return kind == Kind::add; }  ///< adds another operand with the memory order of the result
};
/// Attributes with scratch memory in the program's arena, and these operations on a result of this memory order.
dnnl::primitive_attr attributes(const std::vector<PostOp>& post, const Desc& result);
/// Example: " add relu"
std::string name_of(const std::vector<PostOp>& post);
/// Adds slots for the added operands, which have the numbers from `next` on.
void add_slots(std::vector<PrimitiveKernel::Slot>& slots, const std::vector<PostOp>& post, const Desc& result,
               int next);

// Layers as kernels. Each function returns nothing if oneDNN has no fast code. Images are dense and channels last;
// vectors are fp32.

struct Convolution {
  memory::dims input, weight, output;  ///< weight: O, I, H, W; with groups: G, O/G, I/G, H, W
  memory::dims stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
  bool transposed = false;  ///< the weight still maps input channels to output channels
  bool wide = false;        ///< for images in bf16: the weight's gradient is fp32

  memory::data_type gradient_type() const { return wide ? memory::data_type::f32 : type; }
};

/// One pass of a convolution or linear, and its preferred weight layout.
struct LayerPass {
  KernelPointer kernel;
  Desc weight;
  /// If true, the factors of a norm are a separate operand after the weight. Otherwise, they are part of the packed
  /// weight.
  bool scales = false;
};

/// Operands: input, packed weight, bias if present, operands of post operations. Results: output
std::optional<LayerPass> convolution_forward(const Convolution& shape, const std::vector<PostOp>& post);
/// Operands: gradient of the output, packed weight. Results: gradient of the input
std::optional<LayerPass> convolution_backward_data(const Convolution& shape);
/// Operands: gradient of the output, input. Results: gradient of the packed weight, gradient of the bias if present
std::optional<LayerPass> convolution_backward_weight(const Convolution& shape);

/// input · weight + bias
struct Linear {
  memory::dim rows = 0, inner = 0, columns = 0;
  memory::dim row_stride = 0;  ///< of the input, in elements; the columns are adjacent
  size_t offset = 0;           ///< of the input's first element, in bytes
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
};
/// Operands and results as for convolution_forward; the packed weight is inner × columns.
std::optional<LayerPass> linear_forward(const Linear& shape, const std::vector<PostOp>& post);

/// True if libtorch's BLAS with a packed weight is faster than oneDNN. Measured for MKL on Intel AVX-512: 6 to 11 %
/// from 64 rows on.
bool prefers_blas(const Linear& shape);
/// Kernels for packing a weight and for the matmul.
struct BlasLinear {
  KernelPointer pack;     ///< Operands: weight. Results: packed weight
  KernelPointer forward;  ///< Operands: input, packed weight, bias if present, added operand. Results: output
  size_t packed_bytes = 0;
};
/// Params: adds – another operand is added to the result
///         strides – of the weight's inner dim and columns; one of them must be 1
std::optional<BlasLinear> blas_linear(const Linear& shape, bool adds, const memory::dims& strides);

/// True if a matmul is faster than oneDNN's direct code plus the packing of a weight that changes in each call.
bool prefers_product(const Convolution& shape);
/// Like the convolution_… functions above, but computed as matmuls with plain weights.
std::optional<LayerPass> product_forward(const Convolution& shape, const std::vector<PostOp>& post, bool scaled);
std::optional<LayerPass> product_backward_data(const Convolution& shape);
std::optional<LayerPass> product_backward_weight(const Convolution& shape);

struct BatchNorm {
  memory::dims sizes;
  memory::data_type type = memory::data_type::f32;
  double eps = 1e-5, momentum = 0.1;
  bool affine = true, tracked = true;  ///< whether there are weight and bias, and running statistics
  bool relu = false;                   ///< followed by a ReLU, in training
};

/// A kernel, and the size of the workspace that forward passes to backward: the last result or operand.
struct KeepingPass {
  KernelPointer kernel;
  size_t workspace = 0;
};

/// Operands: x, weight, bias, running mean and variance, which are updated. Results: y, mean, 1/std; with ReLU also its
/// workspace
std::optional<KeepingPass> batch_norm_training(const BatchNorm& shape);
/// Operands: as above. Results: y
KernelPointer batch_norm_inference(const BatchNorm& shape);
/// Operands: gradient of y, x, weight, mean, 1/std; with ReLU also its workspace. Results: gradients of x, weight, bias
KernelPointer batch_norm_backward(const BatchNorm& shape);
/// Operands: weight, bias, running mean and variance, a convolution's bias if present. Results: the factor of that
/// convolution's weight, and the bias that replaces its bias and the norm.
KernelPointer batch_norm_folding(const BatchNorm& shape, bool bias);

struct Pooling {
  memory::dims input, output, kernel, stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  dnnl::algorithm algorithm = dnnl::algorithm::pooling_max;
};

std::optional<KeepingPass> pooling_forward(const Pooling& shape, bool training);
std::optional<KeepingPass> pooling_backward(const Pooling& shape);

}  // namespace bellows::compile_detail::onednn
