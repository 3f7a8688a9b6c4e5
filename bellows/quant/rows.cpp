#include "bellows/quant/rows.h"

namespace bellows::quant {

namespace {

int64_t axis_of(at::IntArrayRef sizes, const Scheme& scheme) {
  const auto dims = static_cast<int64_t>(sizes.size());
  const int64_t axis = scheme.axis < 0 ? scheme.axis + dims : scheme.axis;
  TORCH_CHECK_VALUE(axis >= 0 && axis < dims, "quantization per channel: expected a tensor with dim ", scheme.axis,
                    ", got the shape ", sizes, ".");
  return axis;
}

int64_t last_dim(at::IntArrayRef sizes, const char* what) {
  TORCH_CHECK_VALUE(!sizes.empty(), "quantization per ", what, ": expected at least one dim, got a scalar.");
  return sizes.back();
}

/// The shape in which the channels come first.
std::vector<int64_t> with_axis_first(at::IntArrayRef sizes, int64_t axis) {
  std::vector<int64_t> shape = sizes.vec();
  shape.erase(shape.begin() + axis);
  shape.insert(shape.begin(), sizes[axis]);
  return shape;
}

}  // namespace

std::vector<int64_t> parameter_shape(at::IntArrayRef sizes, const Scheme& scheme) {
  std::vector<int64_t> shape = sizes.vec();
  switch (scheme.granularity) {
    case Granularity::tensor:
      return {};
    case Granularity::channel:
      return {sizes[axis_of(sizes, scheme)]};
    case Granularity::token:
      last_dim(sizes, "token");
      shape.pop_back();
      return shape;
    case Granularity::group:
      TORCH_CHECK_VALUE(last_dim(sizes, "group") % scheme.group_size == 0,
                        "quantization per group: expected a last dim that is a multiple of the group size ",
                        scheme.group_size, ", got the shape ", sizes, ". Use a group size that divides ", sizes.back(),
                        ", or one scale per channel.");
      shape.back() /= scheme.group_size;
      return shape;
  }
  return {};
}

at::Tensor as_rows(const at::Tensor& x, const Scheme& scheme) {
  const std::vector<int64_t> shape = parameter_shape(x.sizes(), scheme);
  const int64_t rows = c10::multiply_integers(shape);
  const int64_t values = rows > 0 ? x.numel() / rows : 0;
  if (scheme.granularity != Granularity::channel) return x.reshape({rows, values});
  return x.movedim(axis_of(x.sizes(), scheme), 0).reshape({rows, values});
}

at::Tensor from_rows(const at::Tensor& rows, at::IntArrayRef sizes, const Scheme& scheme) {
  if (scheme.granularity != Granularity::channel) return rows.reshape(sizes);
  const int64_t axis = axis_of(sizes, scheme);
  return rows.reshape(with_axis_first(sizes, axis)).movedim(0, axis).contiguous();
}

}  // namespace bellows::quant
