#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/comm/group.h"

/// Exchanges between the layers of a tensor-parallel model, with their gradients. They are collective, in forward or in
/// backward. Second derivatives are not supported.
namespace bellows::parallel {

/// Returns `x`. Backward adds the ranks' gradients. It precedes layers that each rank computes in part.
at::Tensor add_gradients(const at::Tensor& x, const comm::Group& group);
/// Adds the ranks' tensors. Backward passes the gradient on. It follows layers that each rank computes in part.
at::Tensor add_outputs(const at::Tensor& x, const comm::Group& group);

/// Returns this rank's slice along `dim`. Backward gathers the gradients of the slices.
at::Tensor take_slice(const at::Tensor& x, int64_t dim, const comm::Group& group);
/// Gathers the ranks' slices along `dim`.
/// Params: add – backward adds the ranks' gradients before it takes this rank's slice. If false, all ranks have the same
///               gradient
at::Tensor gather_slices(const at::Tensor& x, int64_t dim, bool add, const comm::Group& group);
/// Adds the ranks' tensors and returns this rank's slice along `dim`. Backward gathers the gradients of the slices.
/// Cost: each of n ranks sends (n - 1) / n of the tensor's bytes
at::Tensor add_and_slice(const at::Tensor& x, int64_t dim, const comm::Group& group);

}  // namespace bellows::parallel
