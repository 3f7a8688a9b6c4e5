#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "bellows/quant/scheme.h"

/// Every granularity in one form: a matrix in which each row has its own scale and zero point.
namespace bellows::quant {

/// Returns the shape of the scales and zero points of a tensor.
/// Shapes: x [d0, …, dn] → [] per tensor; [d_axis] per channel; [d0, …, d(n−1)] per token; [d0, …, dn / group_size] per
///         group
/// Throws: c10::ValueError if the tensor has no such dim, or if the group size does not divide the last dim
std::vector<int64_t> parameter_shape(at::IntArrayRef sizes, const Scheme& scheme);

/// Returns the tensor as a matrix [rows, values], with one row for each scale. It is a view if the strides permit.
at::Tensor as_rows(const at::Tensor& x, const Scheme& scheme);

/// The inverse of as_rows().
/// Params: sizes – the shape of the original tensor
at::Tensor from_rows(const at::Tensor& rows, at::IntArrayRef sizes, const Scheme& scheme);

}  // namespace bellows::quant
