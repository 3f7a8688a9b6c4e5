#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "bellows/quant/methods/input_statistics.h"
#include "bellows/quant/scheme.h"

/// Checks that all methods share. A method works on a matrix [out, in], in which scales belong to whole rows or to groups
/// of neighbors in a row.
namespace bellows::quant {

/// Returns the weight as a contiguous fp32 matrix without gradient. It may share memory with the weight.
/// Params: method – name of the method, for errors
/// Throws: c10::ValueError if the weight is not a floating-point matrix with finite values, or if a scale would belong to
///         values in the same column
at::Tensor weight_matrix(const at::Tensor& weight, const Scheme& scheme, const char* method);
/// Throws: c10::ValueError if the statistics have another number of features, or no inputs
void check_inputs(const at::Tensor& weight, const InputStatistics& inputs, const char* method);

/// Returns the number of neighbors in a row that share a scale.
int64_t columns_per_scale(const at::Tensor& weight, const Scheme& scheme);

}  // namespace bellows::quant
