#include "bellows/compile/onednn_layers_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

using Place = PrimitiveKernel::Place;
using Slot = PrimitiveKernel::Slot;

/// With what is missing at the end: the last window may reach further, or less far, than the padding in front.
memory::dims padding_after(const Pooling& shape) {
  memory::dims made;
  made.reserve(2);
  for (size_t i = 0; i < 2; ++i) {
    const memory::dim reach =
        (shape.output[i + 2] - 1) * shape.stride[i] + (shape.kernel[i] - 1) * shape.dilation[i] + 1;
    made.push_back(reach - shape.input[i + 2] - shape.padding[i]);
  }
  return made;
}

memory::dims dilation_of(const Pooling& shape) {
  return {shape.dilation[0] - 1, shape.dilation[1] - 1};
}

auto pooling_forward_desc(const Pooling& shape, bool training) {
  return dnnl::pooling_forward::primitive_desc(
      engine(), training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference, shape.algorithm,
      channels_last(shape.input, shape.type), channels_last(shape.output, shape.type), shape.stride, shape.kernel,
      dilation_of(shape), shape.padding, padding_after(shape), attributes(), /*allow_empty=*/true);
}

bool keeps_places(const Pooling& shape) {
  return shape.algorithm == dnnl::algorithm::pooling_max;
}

}  // namespace

std::optional<KeepingPass> pooling_forward(const Pooling& shape, bool training) {
  const auto desc = pooling_forward_desc(shape, training);
  if (!is_fast(desc)) return {};
  std::vector<Slot> slots{{DNNL_ARG_SRC, desc.src_desc(), Place::operand, 0},
                          {DNNL_ARG_DST, desc.dst_desc(), Place::result, 0}};
  KeepingPass made;
  if (training && keeps_places(shape)) {
    slots.push_back({DNNL_ARG_WORKSPACE, desc.workspace_desc(), Place::result, 1});
    made.workspace = desc.workspace_desc().get_size();
  }
  made.kernel =
      std::make_shared<PrimitiveKernel>(std::string("pooling ") + desc.impl_info_str(), dnnl::pooling_forward(desc),
                                        std::move(slots), desc.scratchpad_desc());
  return made;
}

std::optional<KeepingPass> pooling_backward(const Pooling& shape) {
  const auto forward = pooling_forward_desc(shape, /*training=*/true);
  if (!forward) return {};
  const dnnl::pooling_backward::primitive_desc desc(
      engine(), shape.algorithm, channels_last(shape.input, shape.type), channels_last(shape.output, shape.type),
      shape.stride, shape.kernel, dilation_of(shape), shape.padding, padding_after(shape), forward, attributes(),
      /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  std::vector<Slot> slots{{DNNL_ARG_DIFF_DST, desc.diff_dst_desc(), Place::operand, 0},
                          {DNNL_ARG_DIFF_SRC, desc.diff_src_desc(), Place::result, 0}};
  KeepingPass made;
  if (keeps_places(shape)) {
    slots.push_back({DNNL_ARG_WORKSPACE, forward.workspace_desc(), Place::operand, 1});
    made.workspace = forward.workspace_desc().get_size();
  }
  made.kernel =
      std::make_shared<PrimitiveKernel>(std::string("pooling backward ") + desc.impl_info_str(),
                                        dnnl::pooling_backward(desc), std::move(slots), desc.scratchpad_desc());
  return made;
}

}  // namespace bellows::compile_detail::onednn
