#include "bellows/nn/softmax_op.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "bellows/kernels/cuda/available.h"
#include "bellows/kernels/cuda/softmax.h"
#include "bellows/kernels/softmax.h"
#include "bellows/nn/cuda_stream.h"

namespace bellows::nn {

namespace {

kernels::SoftmaxRows rows_of(const at::Tensor& logits, const at::Tensor& target, int64_t first) {
  return {.dtype = logits.scalar_type(),
          .rows = logits.size(0),
          .columns = logits.size(1),
          .stride = logits.stride(0),
          .first = first,
          .logits = logits.const_data_ptr(),
          .target = target.const_data_ptr<int64_t>()};
}

void statistics_strided(const at::Tensor& state, const at::Tensor& logits, const at::Tensor& target, int64_t first,
                        bool total) {
  const at::Tensor classes = target.contiguous();
  const auto row = [&](int64_t i) { return state.select(0, i).mutable_data_ptr(); };
  const kernels::SoftmaxStatistics args = {.scores = rows_of(logits, classes, first),
                                           .max = row(0),
                                           .sum = row(1),
                                           .picked = row(2),
                                           .total = total ? row(3) : nullptr};
  if (!logits.is_cuda()) return kernels::softmax_statistics(args);
  on_current_stream(logits, [&](void* stream) { kernels::cuda::softmax_statistics(args, stream); });
}

void gradient_strided(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& target,
                      const at::Tensor& log_sum, const at::Tensor& scale, int64_t first, double on, double off) {
  const at::Tensor classes = target.contiguous(), sums = log_sum.contiguous(), scales = scale.contiguous();
  const kernels::SoftmaxGradient args = {.scores = rows_of(logits, classes, first),
                                         .log_sum = sums.const_data_ptr(),
                                         .scale = scales.const_data_ptr(),
                                         .on = on,
                                         .off = off,
                                         .gradient = gradient.mutable_data_ptr()};
  if (!logits.is_cuda()) return kernels::softmax_gradient(args);
  on_current_stream(logits, [&](void* stream) { kernels::cuda::softmax_gradient(args, stream); });
}

void statistics_meta(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, bool) {}
void gradient_meta(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                   int64_t, double, double) {}

/// The target's column in this range of classes, and whether the target lies in the range.
std::pair<at::Tensor, at::Tensor> column_of(const at::Tensor& logits, const at::Tensor& target, int64_t first) {
  const at::Tensor column = target - first;
  return {column.clamp(0, logits.size(1) - 1).unsqueeze(1), column.ge(0) & column.lt(logits.size(1))};
}

void statistics_composed(const at::Tensor& state, const at::Tensor& logits, const at::Tensor& target, int64_t first,
                         bool total) {
  const at::Tensor x = logits.to(state.scalar_type()), before = state[0].clone();
  const at::Tensor largest = at::maximum(before, x.amax(1));
  const at::Tensor earlier = at::where(before.isinf(), at::zeros_like(before), state[1] * (before - largest).exp());
  state[0].copy_(largest);
  state[1].copy_(earlier + (x - largest.unsqueeze(1)).exp().sum(1));
  const auto [column, here] = column_of(logits, target, first);
  state[2].copy_(at::where(here, x.gather(1, column).squeeze(1), state[2]));
  if (total) state[3].add_(x.sum(1));
}

void gradient_composed(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& target,
                       const at::Tensor& log_sum, const at::Tensor& scale, int64_t first, double on, double off) {
  at::Tensor p = (logits.to(log_sum.scalar_type()) - log_sum.unsqueeze(1)).exp_().sub_(off);
  const auto [column, here] = column_of(logits, target, first);
  p.scatter_add_(1, column, (here.to(p.scalar_type()) * -on).unsqueeze(1));
  gradient.copy_(at::where(scale.eq(0).unsqueeze(1), at::zeros_like(p), p * scale.unsqueeze(1)));
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("softmax_statistics_(Tensor(a!) state, Tensor logits, Tensor target, int first, bool total) -> ()",
              {at::Tag::pt2_compliant_tag});
  library.def(
      "softmax_gradient_(Tensor(a!) gradient, Tensor logits, Tensor target, Tensor log_sum, Tensor scale, int first,"
      " float on, float off) -> ()",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("softmax_statistics_", statistics_strided);
  library.impl("softmax_gradient_", gradient_strided);
}

TORCH_LIBRARY_IMPL(bellows, CUDA, library) {
  if (!kernels::cuda::is_available()) return;  // libtorch's operators are used then
  library.impl("softmax_statistics_", statistics_strided);
  library.impl("softmax_gradient_", gradient_strided);
}

TORCH_LIBRARY_IMPL(bellows, Meta, library) {
  library.impl("softmax_statistics_", statistics_meta);
  library.impl("softmax_gradient_", gradient_meta);
}

TORCH_LIBRARY_IMPL(bellows, CompositeExplicitAutograd, library) {
  library.impl("softmax_statistics_", statistics_composed);
  library.impl("softmax_gradient_", gradient_composed);
}

void softmax_statistics_op(const at::Tensor& state, const at::Tensor& logits, const at::Tensor& target, int64_t first,
                           bool total) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::softmax_statistics_", "")
                             .typed<decltype(statistics_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(state, logits, target, first, total);
}

void softmax_gradient_op(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& target,
                         const at::Tensor& log_sum, const at::Tensor& scale, int64_t first, double on, double off) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("bellows::softmax_gradient_", "")
                             .typed<decltype(gradient_strided)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(gradient, logits, target, log_sum, scale, first, on, off);
}

}  // namespace bellows::nn
