#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "bellows/comm/group.h"

namespace bellows::parallel {

/// Averages the gradients of parameters over the ranks of a group, in buckets of about 25 MiB. While a bucket is sent,
/// the next one is copied. A rank without a gradient counts as zeros, and gets the mean. A parameter without gradients
/// on all ranks keeps none. Collective: all ranks pass the same parameters in the same order.
/// Cost:   all-reduces each gradient and one integer per parameter, and needs memory for two buckets
/// Throws: c10::ValueError if a gradient is sparse
void average_gradients(const std::vector<at::Tensor>& parameters, const comm::Group& group);

}  // namespace bellows::parallel
