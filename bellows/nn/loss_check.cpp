#include "bellows/nn/loss_check.h"

#include <ATen/core/Reduction.h>

#include <cmath>

namespace bellows::nn::loss {

namespace {

void check_device(const char* function, const char* name, const at::Tensor& tensor, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(tensor.device() == logits.device(), function, ": expected ", name, " on the logits' device ",
                    logits.device(), ", got ", tensor.device(), ".");
}

/// The shape of class indices for these logits: the logits' shape without the class dim.
std::vector<int64_t> index_shape(const at::Tensor& logits) {
  std::vector<int64_t> shape = logits.sizes().vec();
  if (!shape.empty()) shape.erase(shape.begin() + (shape.size() > 1 ? 1 : 0));
  return shape;
}

bool broadcasts(at::IntArrayRef from, at::IntArrayRef to) {
  if (from.size() > to.size()) return false;
  for (size_t i = 1; i <= from.size(); ++i) {
    if (from[from.size() - i] != 1 && from[from.size() - i] != to[to.size() - i]) return false;
  }
  return true;
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), " ", tensor.sizes()) : "an undefined tensor";
}

bool has_kernels(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

void check_smoothing(const char* function, double smoothing) {
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing <= 1, function, ": expected label_smoothing in [0, 1], got ", smoothing,
                    ".");
}

void check_not_negative(const char* function, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && std::isfinite(value), function, ": expected a finite ", name, " of at least 0, got ",
                    value, ".");
}

at::Tensor logits_of(const char* function, const at::Tensor& logits, int64_t min_dim) {
  TORCH_CHECK_VALUE(logits.defined() && logits.is_floating_point() && logits.dim() >= min_dim, function,
                    ": expected floating-point logits", min_dim ? " with a dim of classes" : "", ", got ",
                    describe(logits), ".");
  const bool low = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  return low ? logits.to(at::kFloat) : logits;
}

bool is_class_indices(const at::Tensor& target, const at::Tensor& logits) {
  return target.defined() && target.scalar_type() == at::kLong && logits.dim() >= 2 &&
         target.sizes() == at::IntArrayRef(index_shape(logits)) && target.sizes() != logits.sizes();
}

void check_class_target(const char* function, const at::Tensor& target, const at::Tensor& logits) {
  const std::vector<int64_t> shape = index_shape(logits);
  TORCH_CHECK_VALUE(logits.dim() >= 1 && target.defined() && target.scalar_type() == at::kLong &&
                        target.sizes() == at::IntArrayRef(shape),
                    function, ": expected class indices, int64 ", at::IntArrayRef(shape), " for logits of ",
                    logits.sizes(), ", got ", describe(target), ".");
  check_device(function, "target", target, logits);
}

void check_last_class_target(const char* function, const at::Tensor& target, const at::Tensor& logits) {
  const at::IntArrayRef shape = logits.sizes().slice(0, logits.dim() - 1);
  TORCH_CHECK_VALUE(target.defined() && target.scalar_type() == at::kLong && target.sizes() == shape, function,
                    ": expected class indices, int64 ", shape, ", got ", describe(target), ".");
  check_device(function, "target", target, logits);
}

void check_dense_target(const char* function, const at::Tensor& target, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(target.defined() && target.sizes() == logits.sizes() && !target.is_complex(), function,
                    ": expected a target of the logits' shape ", logits.sizes(), ", got ", describe(target),
                    ". Convert class indices with smooth_one_hot().");
  check_device(function, "target", target, logits);
}

void check_broadcasts(const char* function, const char* name, const at::Tensor& weight, const at::Tensor& logits) {
  if (!weight.defined()) return;
  TORCH_CHECK_VALUE(broadcasts(weight.sizes(), logits.sizes()), function, ": expected a ", name,
                    " that broadcasts to the logits' shape ", logits.sizes(), ", got ", weight.sizes(),
                    ". One factor per class has shape [C] for logits [N, C], and [C, 1, 1] for [N, C, H, W].");
  check_device(function, name, weight, logits);
}

at::Tensor class_weight(const char* function, const at::Tensor& weight, const at::Tensor& logits) {
  if (!weight.defined()) return weight;
  const int64_t classes = logits.size(logits.dim() == 1 ? 0 : 1);
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.size(0) == classes && weight.is_floating_point(), function,
                    ": expected a weight for each of the ", classes, " classes, floating-point [", classes, "], got ",
                    describe(weight), ".");
  check_device(function, "weight", weight, logits);
  return weight.to(logits.scalar_type());
}

std::optional<at::Tensor> maybe(const at::Tensor& tensor, const at::Tensor& logits) {
  return tensor.defined() ? std::optional(tensor.to(logits.scalar_type())) : std::nullopt;
}

int64_t to_aten(Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
      return at::Reduction::Mean;
    case Reduction::sum:
      return at::Reduction::Sum;
    default:
      return at::Reduction::None;
  }
}

}  // namespace bellows::nn::loss
