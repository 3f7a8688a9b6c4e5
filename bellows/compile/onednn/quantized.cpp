#include "bellows/compile/onednn/onednn.h"
#include "bellows/compile/onednn/primitives_impl.h"

namespace bellows::compile_detail {

bool adds_int8_exactly() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
    case dnnl::cpu_isa::avx:
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx512_core:
      return false;
    default:
      return true;
  }
}

namespace onednn {
namespace {

using Place = PrimitiveKernel::Place;
using Slot = PrimitiveKernel::Slot;

Desc scalar_of(memory::data_type type) {
  return {{1}, type, memory::format_tag::a};
}

/// The attributes and operands of a quantized layer, in the order that primitives_impl.h states.
class Layer {
 public:
  /// Params: channels – mask of the weight's dims that have their own scales
  ///         result   – the output as fp32
  Layer(const Integers& integers, int channels, const Desc& bias, const std::vector<PostOp>& post, const Desc& result)
      : attributes_(onednn::attributes()) {
    const memory::dim outputs = result.get_dims()[1];
    attributes_.set_scales_mask(DNNL_ARG_SRC, 0);
    add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, scalar_of(memory::data_type::f32), 2);
    attributes_.set_scales_mask(DNNL_ARG_WEIGHTS, channels);
    add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, vector_of(outputs), 3);
    int next = 4;
    if (integers.input_zero_point) zero_point(DNNL_ARG_SRC, next++);
    if (bias.get_ndims() > 0) add(DNNL_ARG_BIAS, bias, next++);
    if (integers.quantizes_output()) {
      attributes_.set_scales_mask(DNNL_ARG_DST, 0);
      add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_DST, scalar_of(memory::data_type::f32), next++);
      if (integers.output_zero_point) zero_point(DNNL_ARG_DST, next++);
    }
    append(post, integers, result, next);
    attributes_.set_post_ops(ops_);
  }

  const dnnl::primitive_attr& attributes() const { return attributes_; }
  /// Returns all slots of a primitive with this weight.
  std::vector<Slot> slots(const Desc& input, size_t offset, const Desc& weight, const Desc& output) const {
    std::vector<Slot> all{{DNNL_ARG_SRC, input, Place::operand, 0, offset},
                          {DNNL_ARG_WEIGHTS, weight, Place::operand, 1},
                          {DNNL_ARG_DST, output, Place::result, 0}};
    all.insert(all.end(), slots_.begin(), slots_.end());
    return all;
  }

 private:
  void add(int arg, const Desc& desc, int operand) { slots_.push_back({arg, desc, Place::operand, operand}); }

  void zero_point(int arg, int operand) {
    attributes_.set_zero_points_mask(arg, 0);
    add(DNNL_ARG_ATTR_ZERO_POINTS | arg, scalar_of(memory::data_type::s32), operand);
  }

  void append(const std::vector<PostOp>& post, const Integers& integers, const Desc& result, int next) {
    bool may_be_nan = false;  // sums of integers are never NaN
    for (const PostOp& one : post) {
      if (one.is_add() && integers.added != memory::data_type::undef) {
        append_integers(integers, result, next++);
      } else if (one.is_add()) {
        append_operand(result, next++);
        may_be_nan = true;
      } else if (one.kind == PostOp::Kind::relu && !may_be_nan) {
        ops_.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
      } else {
        append_activation(ops_, one);
      }
    }
  }

  void append_operand(const Desc& desc, int operand) {
    add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(ops_.len()) | DNNL_ARG_SRC_1, desc, operand);
    ops_.append_binary(dnnl::algorithm::binary_add, desc);
  }

  /// Adds integers · scale. oneDNN has no scale for this operand, so the result is divided before and multiplied after.
  void append_integers(const Integers& integers, const Desc& result, int operand) {
    ops_.append_eltwise(dnnl::algorithm::eltwise_linear, 1 / integers.added_scale, 0);
    append_operand(channels_last(result.get_dims(), integers.added), operand);
    ops_.append_eltwise(dnnl::algorithm::eltwise_linear, integers.added_scale, 0);
  }

  dnnl::primitive_attr attributes_;
  dnnl::post_ops ops_;
  std::vector<Slot> slots_;
};

}  // namespace

std::string name_of_layer(const char* kind, const std::vector<PostOp>& post, const Integers& integers,
                          const std::string& how) {
  std::string operations = name_of(post);
  if (integers.added != memory::data_type::undef) operations.insert(operations.find(" add") + 4, " int8");
  return kind + operations + (integers.quantizes_output() ? " quantize " : " ") + how;
}

std::optional<LayerPass> quantized_linear_forward(const Linear& shape, const Integers& integers,
                                                  const std::vector<PostOp>& post) {
  const Desc input({shape.rows, shape.inner}, integers.input, {shape.row_stride, 1}),
      weight({shape.inner, shape.columns}, memory::data_type::s8, memory::format_tag::any),
      bias = shape.bias ? Desc({1, shape.columns}, memory::data_type::f32, memory::format_tag::ab) : Desc(),
      result({shape.rows, shape.columns}, memory::data_type::f32, memory::format_tag::ab),
      output({shape.rows, shape.columns}, integers.output, memory::format_tag::ab);
  const Layer layer(integers, 1 << 1, bias, post, result);
  const dnnl::matmul::primitive_desc desc(engine(), input, weight, bias, output, layer.attributes(),
                                          /*allow_empty=*/true);
  if (!adds_int8_exactly() || !is_fast(desc)) return {};
  return LayerPass{std::make_shared<PrimitiveKernel>(
                       name_of_layer("int8 linear", post, integers, desc.impl_info_str()), dnnl::matmul(desc),
                       layer.slots(input, shape.offset, desc.weights_desc(), output), desc.scratchpad_desc()),
                   desc.weights_desc()};
}

std::optional<LayerPass> quantized_convolution_forward(const Convolution& shape, const Integers& integers,
                                                       const std::vector<PostOp>& post) {
  const Desc input = channels_last(shape.input, integers.input),
             weight(shape.weight, memory::data_type::s8, memory::format_tag::any),
             bias = shape.bias ? vector_of(shape.output[1]) : Desc(),
             result = channels_last(shape.output, memory::data_type::f32),
             output = channels_last(shape.output, integers.output);
  memory::dims dilation = shape.dilation;
  for (auto& one : dilation) --one;
  const Layer layer(integers, shape.weight.size() == 5 ? 3 : 1, bias, post, result);
  const dnnl::convolution_forward::primitive_desc desc(
      engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, input, weight, bias, output,
      shape.stride, dilation, shape.padding, shape.padding, layer.attributes(), /*allow_empty=*/true);
  if (!adds_int8_exactly() || !is_fast(desc)) return {};
  return LayerPass{
      std::make_shared<PrimitiveKernel>(name_of_layer("int8 convolution", post, integers, desc.impl_info_str()),
                                        dnnl::convolution_forward(desc),
                                        layer.slots(input, 0, desc.weights_desc(), output), desc.scratchpad_desc()),
      desc.weights_desc()};
}

}  // namespace onednn

}  // namespace bellows::compile_detail
