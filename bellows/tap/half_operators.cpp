#include "bellows/tap/half_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mv_native.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <tuple>

#include "bellows/tap/kernel_replacement.h"

namespace bellows::tap {

namespace {

thread_local int half_guards = 0;
std::atomic<int64_t> converted_calls = 0;

/// Features that replace those of the processor: -1 if nothing replaces them, otherwise HalfFeatures::onednn.
std::atomic<int> replaced_features = -1;

/// Asks libtorch, because its own kernels decide by this function.
bool libtorch_has_half_onednn() {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_fp16_supported", ""});
  return op && op->typed<bool()>().call();
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf;
}

/// Whether the operator runs under a guard. Kernels are installed by the first guard, so this is called only after it.
bool is_fast_half() {
  return half_guards > 0 || torch::autograd::get_current_node() != nullptr;
}

/// If operands have different dtypes, libtorch's kernel reports the error.
template <class... Tensors>
bool converts(HalfOperator op, const Tensors&... operands) {
  const bool converted = (is_half(operands) && ...) && is_fast_half() && converts_half(op, half_features());
  if (converted) converted_calls.fetch_add(1, std::memory_order_relaxed);
  return converted;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(at::kFloat);
}

at::Tensor rounded(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kHalf) : tensor;
}

/// The operators below call the dispatcher again. In backward under autocast, it must not cast to fp16 again.
using WithoutAutocast = c10::impl::ExcludeDispatchKeyGuard;

at::Tensor half_mm(const at::Tensor& a, const at::Tensor& b) {
  if (!converts(HalfOperator::matmul, a, b)) return at::cpu::mm(a, b);
  return rounded(at::cpu::mm(widened(a), widened(b)));
}

at::Tensor half_addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                      const at::Scalar& alpha) {
  if (!converts(HalfOperator::matmul, self, a, b)) return at::cpu::addmm(self, a, b, beta, alpha);
  return rounded(at::cpu::addmm(widened(self), widened(a), widened(b), beta, alpha));
}

at::Tensor half_bmm(const at::Tensor& a, const at::Tensor& b) {
  if (!converts(HalfOperator::matmul, a, b)) return at::cpu::bmm(a, b);
  return rounded(at::cpu::bmm(widened(a), widened(b)));
}

at::Tensor half_baddbmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                        const at::Scalar& alpha) {
  if (!converts(HalfOperator::matmul, self, a, b)) return at::cpu::baddbmm(self, a, b, beta, alpha);
  return rounded(at::cpu::baddbmm(widened(self), widened(a), widened(b), beta, alpha));
}

at::Tensor half_mv(const at::Tensor& matrix, const at::Tensor& vector) {
  const WithoutAutocast without(c10::DispatchKey::AutocastCPU);
  if (!converts(HalfOperator::matrix_vector, matrix, vector)) return at::native::mv(matrix, vector);
  return rounded(at::native::mv(widened(matrix), widened(vector)));
}

at::Tensor half_addmv(const at::Tensor& self, const at::Tensor& matrix, const at::Tensor& vector,
                      const at::Scalar& beta, const at::Scalar& alpha) {
  if (!converts(HalfOperator::matrix_vector, self, matrix, vector))
    return at::cpu::addmv(self, matrix, vector, beta, alpha);
  return rounded(at::cpu::addmv(widened(self), widened(matrix), widened(vector), beta, alpha));
}

at::Tensor half_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups) {
  const bool same = !bias || !bias->defined() || is_half(*bias);
  if (!same || !converts(HalfOperator::convolution, input, weight))
    return at::native::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  const WithoutAutocast without(c10::DispatchKey::AutocastCPU);
  const std::optional<at::Tensor> wide = bias && bias->defined() ? std::optional(widened(*bias)) : std::nullopt;
  return rounded(at::native::convolution(widened(input), widened(weight), wide, stride, padding, dilation, transposed,
                                         output_padding, groups));
}

// Programs of compiled functions call the `out` variants.

at::Tensor& store(at::Tensor& out, const at::Tensor& wide) {
  at::native::resize_output(out, wide.sizes());
  return out.copy_(wide);
}

at::Tensor& half_mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!converts(HalfOperator::matmul, a, b, out)) return at::cpu::mm_outf(a, b, out);
  return store(out, at::cpu::mm(widened(a), widened(b)));
}

at::Tensor& half_addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                           const at::Scalar& alpha, at::Tensor& out) {
  if (!converts(HalfOperator::matmul, self, a, b, out)) return at::cpu::addmm_outf(self, a, b, beta, alpha, out);
  return store(out, at::cpu::addmm(widened(self), widened(a), widened(b), beta, alpha));
}

at::Tensor& half_bmm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!converts(HalfOperator::matmul, a, b, out)) return at::cpu::bmm_outf(a, b, out);
  return store(out, at::cpu::bmm(widened(a), widened(b)));
}

at::Tensor& half_baddbmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                             const at::Scalar& alpha, at::Tensor& out) {
  if (!converts(HalfOperator::matmul, self, a, b, out)) return at::cpu::baddbmm_outf(self, a, b, beta, alpha, out);
  return store(out, at::cpu::baddbmm(widened(self), widened(a), widened(b), beta, alpha));
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Gradients half_convolution_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                                    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
                                    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                                    int64_t groups, std::array<bool, 3> mask) {
  const auto run = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return at::native::convolution_backward(a, b, c, bias_sizes, stride, padding, dilation, transposed, output_padding,
                                            groups, mask);
  };
  if (!converts(HalfOperator::convolution_backward, gradient, input, weight)) return run(gradient, input, weight);
  const WithoutAutocast without(c10::DispatchKey::AutocastCPU);
  const auto [to_input, to_weight, to_bias] = run(widened(gradient), widened(input), widened(weight));
  return {rounded(to_input), rounded(to_weight), rounded(to_bias)};
}

torch::Library* install_half() {
  const SilentReplacement silent;
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("mm", half_mm);
  library->impl("addmm", half_addmm);
  library->impl("bmm", half_bmm);
  library->impl("baddbmm", half_baddbmm);
  library->impl("mm.out", half_mm_out);
  library->impl("addmm.out", half_addmm_out);
  library->impl("bmm.out", half_bmm_out);
  library->impl("baddbmm.out", half_baddbmm_out);
  library->impl("mv", half_mv);
  library->impl("addmv", half_addmv);
  library->impl("convolution", half_convolution);
  library->impl("convolution_backward", half_convolution_backward);
  return library;
}

}  // namespace

HalfFeatures half_features() {
  static const bool onednn = libtorch_has_half_onednn();
  const int replaced = replaced_features.load(std::memory_order_relaxed);
  return {.onednn = replaced < 0 ? onednn : replaced == 1};
}

void set_half_features(std::optional<HalfFeatures> features) {
  replaced_features = features ? int{features->onednn} : -1;
}

bool converts_half(HalfOperator op, const HalfFeatures& features) {
  return !features.onednn || op != HalfOperator::matmul;
}

FastHalfGuard::FastHalfGuard(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  [[gnu::used]] static const torch::Library* const installed = install_half();  // never undone
  ++half_guards;
}

FastHalfGuard::~FastHalfGuard() {
  if (enabled_) --half_guards;
}

bool FastHalfGuard::active() {
  return half_guards > 0;
}

int64_t FastHalfGuard::converted() {
  return converted_calls.load(std::memory_order_relaxed);
}

}  // namespace bellows::tap
