#include <cmath>
#include <limits>

#include "bellows/compile/onednn/primitives_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

using Place = PrimitiveKernel::Place;
using Slot = PrimitiveKernel::Slot;
using Flags = dnnl::normalization_flags;

Flags flags_of(const BatchNorm& shape, bool inference) {
  Flags flags = inference ? Flags::use_global_stats : Flags::none;
  if (shape.relu) flags |= Flags::fuse_norm_relu;
  return shape.affine ? flags | Flags::use_scale | Flags::use_shift : flags;
}

auto forward_desc(const BatchNorm& shape, bool inference) {
  const Desc image = channels_last(shape.sizes, shape.type);
  return dnnl::batch_normalization_forward::primitive_desc(
      engine(), inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training, image, image,
      static_cast<float>(shape.eps), flags_of(shape, inference), attributes(), /*allow_empty=*/true);
}

float* floats(void* memory) {
  return static_cast<float*>(memory);
}

/// Restores NaN in the result: the primitive's ReLU turns NaN into 0, which would hide a diverging model.
/// Params: let_through – the ReLU's workspace, a bit or byte per element of the image: whether the element and its
///         gradient pass
template <class T>
void spread_nan(std::span<const float> channels, T* image, uint8_t* let_through, bool in_bits, memory::dim places) {
  const size_t count = channels.size();
  for (size_t c = 0; c < count; ++c) {
    if (!std::isnan(channels[c])) continue;
    for (size_t at = c; at < places * count; at += count) {
      image[at] = std::numeric_limits<T>::quiet_NaN();
      if (in_bits)
        let_through[at / 8] |= static_cast<uint8_t>(1U << at % 8);
      else
        let_through[at] = 1;
    }
  }
}

/// The primitive returns the variance. libtorch keeps 1/std and updates running statistics.
class BatchNormTraining final : public PrimitiveKernel {
 public:
  BatchNormTraining(const BatchNorm& shape, const dnnl::batch_normalization_forward::primitive_desc& desc,
                    std::vector<Slot> slots)
      : PrimitiveKernel(std::string(shape.relu ? "batch norm relu " : "batch norm ") + desc.impl_info_str(),
                        dnnl::batch_normalization_forward(desc), std::move(slots), desc.scratchpad_desc()),
        shape_(shape),
        in_bits_(desc.workspace_desc().get_size() <
                 static_cast<size_t>(shape.sizes[0] * shape.sizes[1] * shape.sizes[2] * shape.sizes[3])) {}

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override {
    PrimitiveKernel::run(operands, results, numbers, scratch);
    const float *const mean = floats(results[1]), *const variance = floats(scratch);
    float* const invstd = floats(results[2]);
    const memory::dim channels = shape_.sizes[1], count = shape_.sizes[0] * shape_.sizes[2] * shape_.sizes[3];
    for (memory::dim c = 0; c < channels; ++c) invstd[c] = static_cast<float>(1 / std::sqrt(variance[c] + shape_.eps));
    if (shape_.relu) keep_nan(operands, results, count);
    if (!shape_.tracked) return;
    const size_t first = shape_.affine ? 3 : 1;
    float *const running_mean = floats(operands[first]), *const running_variance = floats(operands[first + 1]);
    const double momentum = shape_.momentum, unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
    for (memory::dim c = 0; c < channels; ++c) {
      running_mean[c] = static_cast<float>(momentum * mean[c] + (1 - momentum) * running_mean[c]);
      running_variance[c] =
          static_cast<float>(momentum * variance[c] * unbiased + (1 - momentum) * running_variance[c]);
    }
  }

 private:
  void keep_nan(std::span<void* const> operands, std::span<void* const> results, memory::dim places) const {
    const float *const mean = floats(results[1]), *const invstd = floats(results[2]);
    std::vector<float> made(shape_.sizes[1]);
    for (size_t c = 0; c < made.size(); ++c) {
      made[c] = mean[c] * invstd[c];
      if (shape_.affine) made[c] += floats(operands[1])[c] * invstd[c] + floats(operands[2])[c];
    }
    auto* const let_through = static_cast<uint8_t*>(results[3]);
    if (shape_.type == memory::data_type::f32)
      spread_nan(made, floats(results[0]), let_through, in_bits_, places);
    else
      spread_nan(made, static_cast<c10::BFloat16*>(results[0]), let_through, in_bits_, places);
  }

  BatchNorm shape_;
  bool in_bits_;  ///< whether the ReLU's workspace has one bit per element
};

/// The primitive expects the variance, to which it adds eps again.
class BatchNormBackward final : public PrimitiveKernel {
 public:
  BatchNormBackward(const BatchNorm& shape, const dnnl::batch_normalization_backward::primitive_desc& desc,
                    std::vector<Slot> slots)
      : PrimitiveKernel(
            std::string(shape.relu ? "batch norm relu backward " : "batch norm backward ") + desc.impl_info_str(),
            dnnl::batch_normalization_backward(desc), std::move(slots), desc.scratchpad_desc()),
        shape_(shape) {}

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override {
    const float* const invstd = floats(operands[shape_.affine ? 4 : 3]);
    float* const variance = floats(scratch);
    for (memory::dim c = 0; c < shape_.sizes[1]; ++c)
      variance[c] = static_cast<float>(1 / (static_cast<double>(invstd[c]) * invstd[c]) - shape_.eps);
    PrimitiveKernel::run(operands, results, numbers, scratch);
  }

 private:
  BatchNorm shape_;
};

class BatchNormFolding final : public graph::Kernel {
 public:
  BatchNormFolding(const BatchNorm& shape, bool bias) : shape_(shape), bias_(bias) {}
  std::string name() const override { return "fold batch norm"; }

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

std::optional<KeepingPass> batch_norm_training(const BatchNorm& shape) {
  const auto desc = forward_desc(shape, /*inference=*/false);
  if (!is_fast(desc)) return {};
  const Desc image = channels_last(shape.sizes, shape.type), channel = vector_of(shape.sizes[1]);
  const auto count = static_cast<size_t>(shape.sizes[0] * shape.sizes[1] * shape.sizes[2] * shape.sizes[3]);
  const size_t kept = shape.relu ? desc.workspace_desc().get_size() : 0;
  if (shape.relu && kept != count && kept != (count + 7) / 8) return {};
  std::vector<Slot> slots{{DNNL_ARG_SRC, image, Place::operand, 0},
                          {DNNL_ARG_DST, image, Place::result, 0},
                          {DNNL_ARG_MEAN, channel, Place::result, 1},
                          {DNNL_ARG_VARIANCE, channel, Place::scratch}};
  add_affine(slots, shape);
  if (shape.relu) slots.push_back({DNNL_ARG_WORKSPACE, desc.workspace_desc(), Place::result, 3});
  return KeepingPass{std::make_shared<BatchNormTraining>(shape, desc, std::move(slots)),
                     shape.relu ? desc.workspace_desc().get_size() : 0};
}

KernelPointer batch_norm_inference(const BatchNorm& shape) {
  const auto desc = forward_desc(shape, /*inference=*/true);
  if (!is_fast(desc)) return {};
  const Desc image = channels_last(shape.sizes, shape.type), channel = vector_of(shape.sizes[1]);
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
  const auto forward = forward_desc(shape, /*inference=*/false);
  if (!forward) return {};
  const Desc image = channels_last(shape.sizes, shape.type), channel = vector_of(shape.sizes[1]);
  const dnnl::batch_normalization_backward::primitive_desc desc(
      engine(), shape.affine ? dnnl::prop_kind::backward : dnnl::prop_kind::backward_data, image, image, image,
      static_cast<float>(shape.eps), flags_of(shape, false), forward, attributes(), /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  const int statistics = shape.affine ? 3 : 2;
  std::vector<Slot> slots{{DNNL_ARG_DIFF_DST, image, Place::operand, 0},
                          {DNNL_ARG_SRC, image, Place::operand, 1},
                          {DNNL_ARG_MEAN, channel, Place::operand, statistics},
                          {DNNL_ARG_VARIANCE, channel, Place::scratch},
                          {DNNL_ARG_DIFF_SRC, image, Place::result, 0}};
  if (shape.affine) {
    slots.push_back({DNNL_ARG_SCALE, channel, Place::operand, 2});
    slots.push_back({DNNL_ARG_DIFF_SCALE, channel, Place::result, 1});
    slots.push_back({DNNL_ARG_DIFF_SHIFT, channel, Place::result, 2});
  }
  if (shape.relu) slots.push_back({DNNL_ARG_WORKSPACE, forward.workspace_desc(), Place::operand, statistics + 2});
  return std::make_shared<BatchNormBackward>(shape, desc, std::move(slots));
}

KernelPointer batch_norm_folding(const BatchNorm& shape, bool bias) {
  return std::make_shared<BatchNormFolding>(shape, bias);
}

}  // namespace bellows::compile_detail::onednn
