#include <algorithm>
#include <cmath>

#include "bellows/compile/onednn/primitives_impl.h"
#include "bellows/kernels/batch_norm.h"

namespace bellows::compile_detail::onednn {
namespace {

using Place = PrimitiveKernel::Place;
using Slot = PrimitiveKernel::Slot;
using Flags = dnnl::normalization_flags;

float* floats(void* memory) {
  return static_cast<float*>(memory);
}

c10::ScalarType scalar_type(memory::data_type type) {
  return type == memory::data_type::f32 ? at::kFloat : at::kBFloat16;
}

int64_t rows_of(const BatchNorm& shape) {
  return shape.sizes[0] * shape.sizes[2] * shape.sizes[3];
}

/// Updates the running statistics, too. With ReLU, a copy of the bias is kept, from which backward computes the sign again.
class BatchNormTraining final : public graph::Kernel {
 public:
  explicit BatchNormTraining(const BatchNorm& shape) : shape_(shape) {}
  std::string name() const override { return shape_.relu ? "batch norm relu" : "batch norm"; }
  /// The last `channels` floats are the variance.
  size_t scratch_bytes() const override { return kernel_bytes() + shape_.sizes[1] * sizeof(float); }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    float* const variance = floats(static_cast<char*>(scratch) + kernel_bytes());
    const float* const bias = shape_.affine ? floats(operands[2]) : nullptr;
    kernels::batch_norm_forward({.dtype = scalar_type(shape_.type),
                                 .rows = rows_of(shape_),
                                 .channels = shape_.sizes[1],
                                 .eps = shape_.eps,
                                 .relu = shape_.relu,
                                 .x = operands[0],
                                 .weight = shape_.affine ? floats(operands[1]) : nullptr,
                                 .bias = bias,
                                 .y = results[0],
                                 .mean = floats(results[1]),
                                 .variance = variance,
                                 .invstd = floats(results[2]),
                                 .scratch = scratch});
    if (shape_.relu && bias) std::copy_n(bias, shape_.sizes[1], floats(results[3]));
    if (shape_.relu && !bias) std::fill_n(floats(results[3]), shape_.sizes[1], 0.0F);
    if (shape_.tracked) track(operands, floats(results[1]), variance);
  }

 private:
  size_t kernel_bytes() const { return kernels::batch_norm_scratch_bytes(rows_of(shape_), shape_.sizes[1]); }

  void track(std::span<void* const> operands, const float* mean, const float* variance) const {
    const size_t first = shape_.affine ? 3 : 1;
    float *const running_mean = floats(operands[first]), *const running_variance = floats(operands[first + 1]);
    const auto count = static_cast<double>(rows_of(shape_));
    const double momentum = shape_.momentum, unbiased = count / (count - 1);
    for (memory::dim c = 0; c < shape_.sizes[1]; ++c) {
      running_mean[c] = static_cast<float>(momentum * mean[c] + (1 - momentum) * running_mean[c]);
      running_variance[c] =
          static_cast<float>(momentum * variance[c] * unbiased + (1 - momentum) * running_variance[c]);
    }
  }

  BatchNorm shape_;
};

class BatchNormBackward final : public graph::Kernel {
 public:
  explicit BatchNormBackward(const BatchNorm& shape) : shape_(shape) {}
  std::string name() const override { return shape_.relu ? "batch norm relu backward" : "batch norm backward"; }
  size_t scratch_bytes() const override { return kernels::batch_norm_scratch_bytes(rows_of(shape_), shape_.sizes[1]); }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    const size_t statistics = shape_.affine ? 3 : 2;
    kernels::batch_norm_backward({.dtype = scalar_type(shape_.type),
                                  .rows = rows_of(shape_),
                                  .channels = shape_.sizes[1],
                                  .relu = shape_.relu,
                                  .dy = operands[0],
                                  .x = operands[1],
                                  .weight = shape_.affine ? floats(operands[2]) : nullptr,
                                  .bias = shape_.relu ? floats(operands[statistics + 2]) : nullptr,
                                  .mean = floats(operands[statistics]),
                                  .invstd = floats(operands[statistics + 1]),
                                  .dx = results[0],
                                  .dweight = shape_.affine ? floats(results[1]) : nullptr,
                                  .dbias = shape_.affine ? floats(results[2]) : nullptr,
                                  .scratch = scratch});
  }

 private:
  BatchNorm shape_;
};

class BatchNormFolding final : public graph::Kernel {
 public:
  BatchNormFolding(const BatchNorm& shape, bool bias) : shape_(shape), bias_(bias) {}
  std::string name() const override { return "fold batch norm"; }
  std::string identity() const override {
    return c10::str(name(), " ", shape_.sizes[1], " ", shape_.affine, " ", bias_, " ", c10::IValue(shape_.eps));
  }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    size_t next = 0;
    const float* const weight = shape_.affine ? floats(operands[next++]) : nullptr;
    const float* const shift = shape_.affine ? floats(operands[next++]) : nullptr;
    const float* const mean = floats(operands[next++]);
    const float* const variance = floats(operands[next++]);
    const float* const bias = bias_ ? floats(operands[next]) : nullptr;
    for (memory::dim c = 0; c < shape_.sizes[1]; ++c) {
      const double factor = (weight ? weight[c] : 1.0) / std::sqrt(variance[c] + shape_.eps);
      floats(results[0])[c] = static_cast<float>(factor);
      floats(results[1])[c] =
          static_cast<float>((shift ? shift[c] : 0.0) + ((bias ? bias[c] : 0.0) - mean[c]) * factor);
    }
  }

 private:
  BatchNorm shape_;
  bool bias_;
};

void add_affine(std::vector<Slot>& slots, const BatchNorm& shape) {
  if (!shape.affine) return;
  const Desc channel = vector_of(shape.sizes[1]);
  slots.push_back({DNNL_ARG_SCALE, channel, Place::operand, 1});
  slots.push_back({DNNL_ARG_SHIFT, channel, Place::operand, 2});
}

}  // namespace

KernelPointer batch_norm_training(const BatchNorm& shape) {
  return std::make_shared<BatchNormTraining>(shape);
}

KernelPointer batch_norm_inference(const BatchNorm& shape) {
  Flags flags = Flags::use_global_stats;
  if (shape.affine) flags |= Flags::use_scale | Flags::use_shift;
  const Desc image = channels_last(shape.sizes, shape.type), channel = vector_of(shape.sizes[1]);
  const dnnl::batch_normalization_forward::primitive_desc desc(
      engine(), dnnl::prop_kind::forward_inference, image, image, static_cast<float>(shape.eps), flags, attributes(),
      /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  const int statistics = shape.affine ? 3 : 1;
  std::vector<Slot> slots{{DNNL_ARG_SRC, image, Place::operand, 0},
                          {DNNL_ARG_DST, image, Place::result, 0},
                          {DNNL_ARG_MEAN, channel, Place::operand, statistics},
                          {DNNL_ARG_VARIANCE, channel, Place::operand, statistics + 1}};
  add_affine(slots, shape);
  return std::make_shared<PrimitiveKernel>(std::string("batch norm inference ") + desc.impl_info_str(),
                                           dnnl::batch_normalization_forward(desc), std::move(slots),
                                           desc.scratchpad_desc());
}

KernelPointer batch_norm_backward(const BatchNorm& shape) {
  return std::make_shared<BatchNormBackward>(shape);
}

KernelPointer batch_norm_folding(const BatchNorm& shape, bool bias) {
  return std::make_shared<BatchNormFolding>(shape, bias);
}

}  // namespace bellows::compile_detail::onednn
