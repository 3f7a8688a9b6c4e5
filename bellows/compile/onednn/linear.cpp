#include <limits>

#include "bellows/compile/onednn/layers_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

dnnl::algorithm algorithm_of(PostOp::Kind kind) {
  switch (kind) {
    case PostOp::Kind::gelu:
      return dnnl::algorithm::eltwise_gelu_erf;
    case PostOp::Kind::gelu_tanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case PostOp::Kind::tanh:
      return dnnl::algorithm::eltwise_tanh;
    case PostOp::Kind::sigmoid:
      return dnnl::algorithm::eltwise_logistic;
    case PostOp::Kind::silu:
      return dnnl::algorithm::eltwise_swish;
    default:
      return dnnl::algorithm::eltwise_hardswish;
  }
}

/// ReLU as x times a step, x · min(max(alpha · x, 0), 1): oneDNN's own makes 0 of NaN, by which what has gone wrong would look sound. That of
/// -Inf is NaN.
float alpha_of(PostOp::Kind kind) {
  if (kind == PostOp::Kind::relu) return std::numeric_limits<float>::max();
  return kind == PostOp::Kind::silu ? 1 : 0;
}

}  // namespace

dnnl::primitive_attr attributes(const std::vector<PostOp>& post, const Desc& result) {
  dnnl::primitive_attr attr = attributes();
  dnnl::post_ops ops;
  for (const PostOp& one : post) {
    const float alpha = alpha_of(one.kind);
    if (one.is_add())
      ops.append_binary(dnnl::algorithm::binary_add, result);
    else
      ops.append_eltwise(algorithm_of(one.kind), alpha, 0);
  }
  attr.set_post_ops(ops);
  return attr;
}

std::string name_of(const std::vector<PostOp>& post) {
  static constexpr const char* names[] = {" relu", " gelu", " gelu", " tanh", " sigmoid", " silu", " add"};
  std::string made;
  for (const PostOp& one : post) made += names[static_cast<size_t>(one.kind)];
  return made;
}

void add_slots(std::vector<PrimitiveKernel::Slot>& slots, const std::vector<PostOp>& post, const Desc& result,
               int next) {
  for (size_t i = 0; i < post.size(); ++i) {
    const int arg = DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1;
    if (post[i].is_add()) slots.push_back({arg, result, PrimitiveKernel::Place::operand, next++});
  }
}

std::optional<LayerPass> linear_forward(const Linear& shape, const std::vector<PostOp>& post) {
  constexpr auto from = PrimitiveKernel::Place::operand, to = PrimitiveKernel::Place::result;
  const Desc input({shape.rows, shape.inner}, shape.type, {shape.row_stride, 1}),
      weight({shape.inner, shape.columns}, shape.type, memory::format_tag::any),
      bias(shape.bias ? Desc({1, shape.columns}, shape.type, memory::format_tag::ab) : Desc()),
      output({shape.rows, shape.columns}, shape.type, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc desc(engine(), input, weight, bias, output, attributes(post, output),
                                          /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  std::vector<PrimitiveKernel::Slot> slots{{DNNL_ARG_SRC, input, from, 0, shape.offset},
                                           {DNNL_ARG_WEIGHTS, desc.weights_desc(), from, 1},
                                           {DNNL_ARG_DST, output, to, 0}};
  if (shape.bias) slots.push_back({DNNL_ARG_BIAS, bias, from, 2});
  add_slots(slots, post, output, shape.bias ? 3 : 2);
  return LayerPass{std::make_shared<PrimitiveKernel>("linear" + name_of(post) + " " + desc.impl_info_str(),
                                                     dnnl::matmul(desc), std::move(slots), desc.scratchpad_desc()),
                   desc.weights_desc()};
}

}  // namespace bellows::compile_detail::onednn
