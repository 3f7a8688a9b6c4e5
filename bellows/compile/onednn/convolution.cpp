#include "bellows/compile/onednn/primitives_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

using Place = PrimitiveKernel::Place;
using Slot = PrimitiveKernel::Slot;

struct Straight {
  using Forward = dnnl::convolution_forward;
  using Data = dnnl::convolution_backward_data;
  using Weight = dnnl::convolution_backward_weights;
  static constexpr auto direct = dnnl::algorithm::convolution_direct;
  static constexpr const char* name = "convolution";
};

struct Transposed {
  using Forward = dnnl::deconvolution_forward;
  using Data = dnnl::deconvolution_backward_data;
  using Weight = dnnl::deconvolution_backward_weights;
  static constexpr auto direct = dnnl::algorithm::deconvolution_direct;
  static constexpr const char* name = "transposed convolution";
};

struct ConvolutionDescs {
  explicit ConvolutionDescs(const Convolution& shape)
      : input(channels_last(shape.input, shape.type)),
        weight(shape.weight, shape.type, memory::format_tag::any),
        output(channels_last(shape.output, shape.type)),
        bias(shape.bias ? Desc({shape.output[1]}, shape.type, memory::format_tag::a) : Desc()),
        dilation(shape.dilation),
        after(shape.padding) {
    for (auto& one : dilation) --one;
    if (!shape.transposed) return;
    // With output_padding, a result may extend further than its padding.
    for (size_t i = 0; i < 2; ++i) {
      const memory::dim kernel = shape.weight[shape.weight.size() - 2 + i];
      after[i] = (shape.input[i + 2] - 1) * shape.stride[i] + (kernel - 1) * shape.dilation[i] + 1 - shape.padding[i] -
                 shape.output[i + 2];
    }
  }
  Desc input, weight, output, bias;
  memory::dims dilation, after;  ///< after: padding at the end
};

template <class Kind>
typename Kind::Forward::primitive_desc convolution_desc(const Convolution& shape, const ConvolutionDescs& descs,
                                                        const dnnl::primitive_attr& attr) {
  return {engine(),
          dnnl::prop_kind::forward_training,
          Kind::direct,
          descs.input,
          descs.weight,
          descs.bias,
          descs.output,
          shape.stride,
          descs.dilation,
          shape.padding,
          descs.after,
          attr,
          /*allow_empty=*/true};
}

template <class Kind>
std::optional<LayerPass> forward_pass(const Convolution& shape, const std::vector<PostOp>& post) {
  const ConvolutionDescs descs(shape);
  const auto desc = convolution_desc<Kind>(shape, descs, attributes(post, descs.output));
  if (!is_fast(desc)) return {};
  std::vector<Slot> slots{{DNNL_ARG_SRC, descs.input, Place::operand, 0},
                          {DNNL_ARG_WEIGHTS, desc.weights_desc(), Place::operand, 1},
                          {DNNL_ARG_DST, descs.output, Place::result, 0}};
  int operand = 2;
  if (shape.bias) slots.push_back({DNNL_ARG_BIAS, descs.bias, Place::operand, operand++});
  add_slots(slots, post, descs.output, operand);
  std::string name = Kind::name + name_of(post) + " " + desc.impl_info_str();
  return LayerPass{std::make_shared<PrimitiveKernel>(std::move(name), typename Kind::Forward(desc), std::move(slots),
                                                     desc.scratchpad_desc()),
                   desc.weights_desc()};
}

template <class Kind>
std::optional<LayerPass> data_pass(const Convolution& shape) {
  const ConvolutionDescs descs(shape);
  const auto forward = convolution_desc<Kind>(shape, descs, attributes());
  if (!forward) return {};
  const typename Kind::Data::primitive_desc desc(engine(), Kind::direct, descs.input, descs.weight, descs.output,
                                                 shape.stride, descs.dilation, shape.padding, descs.after, forward,
                                                 attributes(), /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  std::vector<Slot> slots{{DNNL_ARG_DIFF_DST, descs.output, Place::operand, 0},
                          {DNNL_ARG_WEIGHTS, desc.weights_desc(), Place::operand, 1},
                          {DNNL_ARG_DIFF_SRC, descs.input, Place::result, 0}};
  return LayerPass{
      std::make_shared<PrimitiveKernel>(std::string(Kind::name) + " backward data " + desc.impl_info_str(),
                                        typename Kind::Data(desc), std::move(slots), desc.scratchpad_desc()),
      desc.weights_desc()};
}

template <class Kind>
std::optional<LayerPass> weight_pass(const Convolution& shape) {
  const ConvolutionDescs descs(shape);
  const auto forward = convolution_desc<Kind>(shape, descs, attributes());
  if (!forward) return {};
  const Desc gradient(shape.weight, shape.gradient_type(), memory::format_tag::any);
  const typename Kind::Weight::primitive_desc desc(engine(), Kind::direct, descs.input, gradient, descs.bias,
                                                   descs.output, shape.stride, descs.dilation, shape.padding,
                                                   descs.after, forward, attributes(), /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  std::vector<Slot> slots{{DNNL_ARG_DIFF_DST, descs.output, Place::operand, 0},
                          {DNNL_ARG_SRC, descs.input, Place::operand, 1},
                          {DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc(), Place::result, 0}};
  if (shape.bias) slots.push_back({DNNL_ARG_DIFF_BIAS, descs.bias, Place::result, 1});
  return LayerPass{
      std::make_shared<PrimitiveKernel>(std::string(Kind::name) + " backward weight " + desc.impl_info_str(),
                                        typename Kind::Weight(desc), std::move(slots), desc.scratchpad_desc()),
      desc.diff_weights_desc()};
}

}  // namespace

std::optional<LayerPass> convolution_forward(const Convolution& shape, const std::vector<PostOp>& post) {
  return shape.transposed ? forward_pass<Transposed>(shape, post) : forward_pass<Straight>(shape, post);
}

std::optional<LayerPass> convolution_backward_data(const Convolution& shape) {
  return shape.transposed ? data_pass<Transposed>(shape) : data_pass<Straight>(shape);
}

std::optional<LayerPass> convolution_backward_weight(const Convolution& shape) {
  return shape.transposed ? weight_pass<Transposed>(shape) : weight_pass<Straight>(shape);
}

}  // namespace bellows::compile_detail::onednn
