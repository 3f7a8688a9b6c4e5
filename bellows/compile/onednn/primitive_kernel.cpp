#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "bellows/compile/onednn/primitives_impl.h"
#include "bellows/core/round_up.h"

namespace bellows::compile_detail::onednn {

// Never destroyed, because kernels may be destroyed after it when the program ends.
const dnnl::engine& engine() {
  static const auto* const made = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *made;
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr made;
  made.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return made;
}

memory::data_type data_type(const graph::Geometry& geometry) {
  if (geometry.dtype == caffe2::TypeMeta::Make<float>()) return memory::data_type::f32;
  if (geometry.dtype == caffe2::TypeMeta::Make<c10::BFloat16>()) return memory::data_type::bf16;
  if (geometry.dtype == caffe2::TypeMeta::Make<int8_t>()) return memory::data_type::s8;
  if (geometry.dtype == caffe2::TypeMeta::Make<uint8_t>() || geometry.dtype == caffe2::TypeMeta::Make<bool>())
    return memory::data_type::u8;
  return memory::data_type::undef;
}

bool is_floating(memory::data_type type) {
  return type == memory::data_type::f32 || type == memory::data_type::bf16;
}

Desc desc_of(const graph::Geometry& geometry) {
  return {dims_of(geometry.sizes), data_type(geometry), dims_of(geometry.strides)};
}

Desc channels_last(const memory::dims& dims, memory::data_type type) {
  return {dims, type, memory::format_tag::nhwc};
}

Desc vector_of(memory::dim size) {
  return {{size}, memory::data_type::f32, memory::format_tag::a};
}

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

/// ReLU as x times a step: x · min(max(alpha · x, 0), 1). oneDNN's own ReLU turns NaN into 0, which would hide errors.
/// The result for -Inf is NaN.
float alpha_of(PostOp::Kind kind) {
  if (kind == PostOp::Kind::relu) return std::numeric_limits<float>::max();
  return kind == PostOp::Kind::silu ? 1 : 0;
}

}  // namespace

PrimitiveKernel::PrimitiveKernel(std::string name, dnnl::primitive primitive, std::vector<Slot> slots,
                                 const Desc& scratchpad, std::string identity)
    : name_(std::move(name)),
      identity_(std::move(identity)),
      primitive_(std::move(primitive)),
      slots_(std::move(slots)),
      stream_(engine()) {
  for (const Slot& slot : slots_) {
    if (slot.place != Place::scratch) continue;
    scratch_bytes_ = std::max(scratch_bytes_, round_up(slot.offset + slot.desc.get_size(), 64));
  }
  if (scratchpad.get_size() > 0) {
    slots_.push_back({DNNL_ARG_SCRATCHPAD, scratchpad, Place::scratch, 0, scratch_bytes_});
    scratch_bytes_ += round_up(scratchpad.get_size(), 64);
  }
  memories_.reserve(slots_.size());
  for (const Slot& slot : slots_) memories_.emplace_back(slot.desc, engine(), nullptr);
}

void PrimitiveKernel::run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
                          void* scratch) const {
  std::vector<dnnl_exec_arg_t> arguments;
  arguments.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    void* const base = slot.place == Place::scratch   ? scratch
                       : slot.place == Place::operand ? operands[slot.index]
                                                      : results[slot.index];
    memories_[i].set_data_handle(static_cast<char*>(base) + slot.offset);
    arguments.push_back({slot.arg, memories_[i].get()});
  }
  const auto status =
      dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(arguments.size()), arguments.data());
  TORCH_CHECK(status == dnnl_success, "oneDNN: ", name_, " failed with status ", static_cast<int>(status), ".");
}

void append_activation(dnnl::post_ops& ops, const PostOp& activation) {
  ops.append_eltwise(algorithm_of(activation.kind), alpha_of(activation.kind), 0);
}

dnnl::primitive_attr attributes(const std::vector<PostOp>& post, const Desc& result) {
  dnnl::primitive_attr attr = attributes();
  dnnl::post_ops ops;
  for (const PostOp& one : post) {
    if (one.is_add())
      ops.append_binary(dnnl::algorithm::binary_add, result);
    else
      append_activation(ops, one);
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

namespace {

/// Returns: a text that determines the descriptor, or "" if the descriptor contains more than an order of elements, such
///          as sums for int8
std::string text_of(const Desc& desc) {
  if (desc.get_format_kind() != memory::format_kind::blocked) return "";
  memory::dim elements = 1;
  for (const memory::dim size : desc.get_padded_dims()) elements *= size;
  const bool is_dense = desc.get_size() == static_cast<size_t>(elements) * memory::data_type_size(desc.get_data_type());
  if (!is_dense) return "";
  return c10::str(static_cast<int>(desc.get_data_type()), at::IntArrayRef(desc.get_dims()),
                  at::IntArrayRef(desc.get_padded_dims()), at::IntArrayRef(desc.get_strides()),
                  at::IntArrayRef(desc.get_inner_blks()), at::IntArrayRef(desc.get_inner_idxs()));
}

}  // namespace

KernelPointer make_reorder(const Desc& from, const Desc& to, const char* what, size_t offset, int scaled) {
  using Place = PrimitiveKernel::Place;
  dnnl::primitive_attr attr = attributes();
  if (scaled != 0) attr.set_scales_mask(DNNL_ARG_SRC, scaled);
  const dnnl::reorder::primitive_desc desc(engine(), from, engine(), to, attr);
  std::vector<PrimitiveKernel::Slot> slots{{DNNL_ARG_FROM, from, Place::operand, 0, offset},
                                           {DNNL_ARG_TO, to, Place::result, 0}};
  if (scaled != 0) {
    memory::dim factors = 1;
    for (int dim = 0; dim < from.get_ndims(); ++dim) factors *= (scaled >> dim & 1) != 0 ? from.get_dims()[dim] : 1;
    slots.push_back({DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, vector_of(factors), Place::operand, 1});
  }
  const std::string source = text_of(from), target = text_of(to);
  return std::make_shared<PrimitiveKernel>(
      what, dnnl::reorder(desc), std::move(slots), desc.scratchpad_desc(),
      source.empty() || target.empty() ? "" : c10::str("reorder ", source, " to ", target, " ", offset, " ", scaled));
}

}  // namespace bellows::compile_detail::onednn
