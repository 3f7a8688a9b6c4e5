#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace bellows::comm {

/// A reduce-scatter as one exchange: each rank sends the others their parts, and adds up in the ranks' order what it got
/// of its own. Gloo's is a whole all-reduce of a copy, twice the bytes; this is for it.
/// Params: out – [D0, …]; in – [size · D0, …], not touched before the work is waited for; both contiguous
/// Cost:   (n - 1) / n of `in` sent and received, and as much memory as `in` until it is waited for; the sum is the
///         waiting thread's
c10::intrusive_ptr<c10d::Work> reduce_scatter_by_exchange(c10d::Backend& backend, at::Tensor& out, at::Tensor& in,
                                                          const c10d::ReduceScatterOptions& options);

}  // namespace bellows::comm
