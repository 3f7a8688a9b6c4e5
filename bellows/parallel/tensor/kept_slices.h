#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "bellows/comm/group.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::parallel {

/// Returns a client for tap::SavedTensorGuard. Where autograd saves `gathered` or a view of all of its elements, the
/// client keeps this rank's slice instead, and backward gathers the slices again. All places that saved the tensor
/// share one exchange.
/// Params: slice, gathered – the input and the result of gather_slices()
/// Cost:   sends the slices once more in each backward pass
std::shared_ptr<tap::SavedTensorTap> keep_slices(const at::Tensor& slice, const at::Tensor& gathered, int64_t dim,
                                                 const comm::Group& group);

}  // namespace bellows::parallel
