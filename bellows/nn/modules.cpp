#include "bellows/nn/modules.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

namespace bellows::nn {

namespace {

void check_options(const char* module, const std::vector<int64_t>& shape, double eps) {
  const bool valid = !shape.empty() && std::all_of(shape.begin(), shape.end(), [](int64_t n) { return n >= 0; });
  TORCH_CHECK_VALUE(valid, module, ": expected a normalized_shape of at least one size, none negative, got ",
                    c10::IntArrayRef(shape), ".");
  TORCH_CHECK_VALUE(eps > 0 && std::isfinite(eps), module, ": expected a finite eps above 0, got ", eps, ".");
}

/// Registers the name even if there is no parameter, as torch::nn does.
at::Tensor register_norm_parameter(torch::nn::Module& module, const char* name, const std::vector<int64_t>& shape,
                                   bool on) {
  return module.register_parameter(name, on ? at::empty(shape) : at::Tensor(), /*requires_grad=*/on);
}

void print_shape(std::ostream& stream, const std::vector<int64_t>& shape) {
  stream << "[";
  for (size_t i = 0; i < shape.size(); ++i) stream << (i ? ", " : "") << shape[i];
  stream << "]";
}

}  // namespace

LayerNormImpl::LayerNormImpl(LayerNormOptions options_) : options(std::move(options_)) {
  check_options("LayerNorm", options.normalized_shape, options.eps);
  reset();
}

void LayerNormImpl::reset() {
  weight = register_norm_parameter(*this, "weight", options.normalized_shape, options.elementwise_affine);
  bias = register_norm_parameter(*this, "bias", options.normalized_shape, options.elementwise_affine && options.bias);
  reset_parameters();
}

void LayerNormImpl::reset_parameters() {
  const c10::NoGradGuard no_grad;
  if (weight.defined()) weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

void LayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "bellows::nn::LayerNorm(";
  print_shape(stream, options.normalized_shape);
  stream << ", eps=" << options.eps << ", elementwise_affine=" << (options.elementwise_affine ? "true" : "false")
         << ", bias=" << (options.bias ? "true" : "false") << ")";
}

RMSNormImpl::RMSNormImpl(RMSNormOptions options_) : options(std::move(options_)) {
  check_options("RMSNorm", options.normalized_shape, options.eps.value_or(1));
  reset();
}

void RMSNormImpl::reset() {
  weight = register_norm_parameter(*this, "weight", options.normalized_shape, options.elementwise_affine);
  reset_parameters();
}

void RMSNormImpl::reset_parameters() {
  const c10::NoGradGuard no_grad;
  if (weight.defined()) weight.fill_(1);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "bellows::nn::RMSNorm(";
  print_shape(stream, options.normalized_shape);
  if (options.eps) stream << ", eps=" << *options.eps;
  stream << ", elementwise_affine=" << (options.elementwise_affine ? "true" : "false") << ")";
}

}  // namespace bellows::nn
