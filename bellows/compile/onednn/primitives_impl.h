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
/// Scratch memory comes from the program's arena.
dnnl::primitive_attr attributes();
/// f32 or bf16; undef: none that we use
memory::data_type data_type(const graph::Geometry& geometry);
/// As the geometry has it, but for its offset.
Desc desc_of(const graph::Geometry& geometry);
/// Channels last, of an image's sizes. Params: dims – N, C, H, W
Desc channels_last(const memory::dims& dims, memory::data_type type);
Desc vector_of(memory::dim size);
inline memory::dims dims_of(at::IntArrayRef sizes) {
  return {sizes.begin(), sizes.end()};
}

/// A primitive, and where each of its arguments comes from in a call.
class PrimitiveKernel : public graph::Kernel {
 public:
  enum class Place : uint8_t { operand, result, scratch };
  struct Slot {
    int arg = 0;  ///< DNNL_ARG_…
    Desc desc{};
    Place place = Place::operand;
    int index = 0;      ///< which operand or result
    size_t offset = 0;  ///< in bytes
  };

  /// Params: scratchpad – what the primitive needs of its own; it comes last in the scratch memory
  PrimitiveKernel(std::string name, dnnl::primitive primitive, std::vector<Slot> slots, const Desc& scratchpad);

  std::string name() const override { return name_; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }

 private:
  std::string name_;
  dnnl::primitive primitive_;
  std::vector<Slot> slots_;
  std::vector<memory> memories_;  ///< one a slot; where they point changes with each call
  dnnl::stream stream_;
  size_t scratch_bytes_ = 0;
};

using KernelPointer = std::shared_ptr<const graph::Kernel>;

/// A copy from one order of memory into another. Params: offset – of the source, in bytes
///         scaled – mask of dims by whose index the elements are multiplied with factors, the second operand; 0: none
KernelPointer make_reorder(const Desc& from, const Desc& to, const char* what, size_t offset = 0, int scaled = 0);

/// "brgconv:avx512_core" and the like; reference code is slower than libtorch's own.
template <class PrimitiveDesc>
bool is_fast(const PrimitiveDesc& desc) {
  if (!desc) return false;
  const std::string how = desc.impl_info_str();
  return how.find("ref") == std::string::npos;
}

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

// Layers as kernels. Each function returns nothing where oneDNN has no fast code. Images are dense and channels last; vectors are fp32.

struct Convolution {
  memory::dims input, weight, output;  ///< weight: O, I, H, W; of groups, if there are any: G, O/G, I/G, H, W
  memory::dims stride, padding, dilation;
  memory::data_type type = memory::data_type::f32;
  bool bias = false;
  bool transposed = false;  ///< weight: from input's channels to the result's all the same
  bool wide = false;        ///< of images in bf16: the weight's gradient is fp32

  memory::data_type gradient_type() const { return wide ? memory::data_type::f32 : type; }
};

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
