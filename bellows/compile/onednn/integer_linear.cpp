#include "bellows/compile/onednn/onednn.h"
#include "bellows/compile/onednn/primitives_impl.h"
#include "bellows/kernels/int8_linear.h"

namespace bellows::compile_detail::onednn {
namespace {

using kernels::Int8Result;
using kernels::Int8Step;

Int8Step::Kind step_of(PostOp::Kind kind) {
  switch (kind) {
    case PostOp::Kind::relu:
      return Int8Step::Kind::relu;
    case PostOp::Kind::gelu:
      return Int8Step::Kind::gelu;
    case PostOp::Kind::gelu_tanh:
      return Int8Step::Kind::gelu_tanh;
    case PostOp::Kind::tanh:
      return Int8Step::Kind::tanh;
    case PostOp::Kind::sigmoid:
      return Int8Step::Kind::sigmoid;
    case PostOp::Kind::silu:
      return Int8Step::Kind::silu;
    default:
      return Int8Step::Kind::add;
  }
}

Int8Result result_of(memory::data_type type) {
  if (type == memory::data_type::f32) return Int8Result::fp32;
  return type == memory::data_type::s8 ? Int8Result::int8 : Int8Result::uint8;
}

class PackIntegers final : public graph::Kernel {
 public:
  explicit PackIntegers(const Linear& shape) : shape_(shape) {}
  std::string name() const override { return "pack int8 weight"; }
  std::string identity() const override { return c10::str(name(), " ", shape_.columns, " ", shape_.inner); }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    kernels::pack_int8_weight(static_cast<const int8_t*>(operands[0]), shape_.columns, shape_.inner, results[0]);
  }

 private:
  Linear shape_;
};

class IntegerKernel final : public graph::Kernel {
 public:
  IntegerKernel(const Linear& shape, const Integers& integers, const std::vector<PostOp>& post)
      : name_(name_of_layer("int8 linear", post, integers, kernels::has_fast_int8_linear() ? "vnni" : "exact")),
        shape_(shape),
        integers_(integers),
        post_(post) {}

  std::string name() const override { return name_; }
  size_t scratch_bytes() const override {
    return kernels::int8_linear_scratch_bytes(shape_.rows, shape_.inner, is_signed());
  }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    size_t next = 4;
    const auto floats = [&](size_t i) { return static_cast<const float*>(operands[i]); };
    const auto zero_point = [&](bool there) { return there ? static_cast<const int32_t*>(operands[next++]) : nullptr; };
    kernels::Int8Linear args{.rows = shape_.rows,
                             .inner = shape_.inner,
                             .columns = shape_.columns,
                             .x = operands[0],
                             .x_is_signed = is_signed(),
                             .x_scale = floats(2),
                             .x_zero_point = zero_point(integers_.input_zero_point),
                             .packed = operands[1],
                             .weight_scales = floats(3),
                             .bias = shape_.bias ? floats(next++) : nullptr,
                             .result = result_of(integers_.output),
                             .y_scale = integers_.quantizes_output() ? floats(next++) : nullptr,
                             .y_zero_point = zero_point(integers_.output_zero_point),
                             .y = results[0],
                             .scratch = scratch};
    args.steps.reserve(post_.size());
    for (const PostOp& one : post_) args.steps.push_back({step_of(one.kind), one.is_add() ? floats(next++) : nullptr});
    kernels::int8_linear(args);
  }

 private:
  bool is_signed() const { return integers_.input == memory::data_type::s8; }

  std::string name_;
  Linear shape_;
  Integers integers_;
  std::vector<PostOp> post_;
};

}  // namespace

bool prefers_integer_linear(const Linear& shape) {
  constexpr memory::dim most_rows = 32;
  return !adds_int8_exactly() || (shape.rows <= most_rows && kernels::has_fast_int8_linear());
}

PackingLinear integer_linear(const Linear& shape, const Integers& integers, const std::vector<PostOp>& post) {
  return {std::make_shared<PackIntegers>(shape), std::make_shared<IntegerKernel>(shape, integers, post),
          kernels::packed_int8_weight_bytes(shape.columns, shape.inner)};
}

}  // namespace bellows::compile_detail::onednn
