#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "bellows/compile/onednn/primitives_impl.h"
#include "bellows/kernels/parallel.h"

namespace bellows::compile_detail::onednn {
namespace {

using Place = PrimitiveKernel::Place;
using Slot = PrimitiveKernel::Slot;

/// Padding at the end. The last window may extend further, or less far, than the padding at the start.
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

/// True if there is a NaN or Inf: 0 · x is then not 0. It uses many partial sums, so that it takes no longer than
/// reading.
template <class T>
bool has_nan(const T* image, int64_t count) {
  constexpr int64_t piece = int64_t{1} << 16, width = 32;
  std::atomic<bool> found = false;
  kernels::parallel_ranges((count + piece - 1) / piece, 4, [&](int64_t begin, int64_t end) {
    std::array<float, width> sums{};
    const int64_t last = std::min(end * piece, count);
    int64_t at = begin * piece;
    for (; at + width <= last; at += width) {
      for (int64_t i = 0; i < width; ++i) sums[i] += 0.0F * static_cast<float>(image[at + i]);
    }
    for (; at < last; ++at) sums[0] += 0.0F * static_cast<float>(image[at]);
    if (std::accumulate(sums.begin(), sums.end(), 0.0F) != 0) found = true;
  });
  return found;
}

/// Restores NaN in the result: the primitive's comparisons lose NaN, which would hide errors. If an image has any, all
/// windows that contain one return NaN.
class MaxPooling final : public PrimitiveKernel {
 public:
  MaxPooling(const Pooling& shape, const dnnl::pooling_forward::primitive_desc& desc, std::vector<Slot> slots)
      : PrimitiveKernel(std::string("pooling ") + desc.impl_info_str(), dnnl::pooling_forward(desc), std::move(slots),
                        desc.scratchpad_desc()),
        shape_(shape) {}

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue> numbers,
           void* scratch) const override {
    PrimitiveKernel::run(operands, results, numbers, scratch);
    if (shape_.type == memory::data_type::f32)
      spread_nan(static_cast<const float*>(operands[0]), static_cast<float*>(results[0]));
    else
      spread_nan(static_cast<const c10::BFloat16*>(operands[0]), static_cast<c10::BFloat16*>(results[0]));
  }

 private:
  template <class T>
  void spread_nan(const T* image, T* pooled) const {
    const auto &from = shape_.input, &to = shape_.output;
    if (!has_nan(image, from[0] * from[1] * from[2] * from[3])) return;
    for (memory::dim at = 0; at < from[0] * from[2] * from[3]; ++at) {
      for (memory::dim c = 0; c < from[1]; ++c) {
        if (!std::isnan(static_cast<float>(image[at * from[1] + c]))) continue;
        const memory::dim n = at / (from[2] * from[3]), y = at / from[3] % from[2], x = at % from[3];
        for_windows(0, y, [&](memory::dim row) {
          for_windows(1, x, [&](memory::dim column) {
            pooled[((n * to[2] + row) * to[3] + column) * to[1] + c] = std::numeric_limits<T>::quiet_NaN();
          });
        });
      }
    }
  }

  /// Calls visit(window) for each window that reads a place along a dim (0: rows, 1: columns).
  template <class Visit>
  void for_windows(int dim, memory::dim place, const Visit& visit) const {
    for (memory::dim k = 0; k < shape_.kernel[dim]; ++k) {
      const memory::dim start = place + shape_.padding[dim] - k * shape_.dilation[dim];
      const memory::dim window = start / shape_.stride[dim];
      if (start >= 0 && start % shape_.stride[dim] == 0 && window < shape_.output[dim + 2]) visit(window);
    }
  }

  const Pooling shape_;
};

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
  if (keeps_places(shape) && is_floating(shape.type))
    made.kernel = std::make_shared<MaxPooling>(shape, desc, std::move(slots));
  else
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
