#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/comm/collectives.h"
#include "bellows/comm/group.h"

/// Calls between two ranks of a group. One rank sends a tensor, and the other one receives it. Between two ranks, the
/// calls of one direction and one tag match in order: the third receive() gets the tensor of the third send(). Other
/// ranks of the group do not take part.
///
/// Only the calls with `_async` allow two ranks to send to each other at the same time. A send may wait until the other
/// rank calls receive(), so two ranks that both call the blocking send() first wait for each other.
///
/// Cost:    the tensor's bytes once, from one rank to the other
/// Threads: calls of several threads are safe if each thread uses its own tags
/// Throws:  c10::ValueError if the other rank is this rank or not in the group, or if the tag is negative.
///          c10::Error if the other rank ended, passed a different dtype or shape, or exceeded the World's timeout. The
///          message names the rank, the call and the direction
/// Ref:     torch.distributed.isend, torch.distributed.irecv
namespace bellows::comm {

/// Sends a tensor to one rank. The tensor must not change until wait() has returned.
/// Params:  to – rank within the group; tag – separates independent sequences of calls between the same ranks
/// Returns: the tensor
at::Tensor send(const at::Tensor& tensor, int to, const Group& group, int tag = 0);
[[nodiscard]] Pending send_async(const at::Tensor& tensor, int to, const Group& group, int tag = 0);

/// Receives a tensor from one rank, in place.
/// Params:  tensor – has the dtype and shape of the sent tensor; from – rank within the group; tag – that of send()
/// Returns: the tensor
at::Tensor receive(at::Tensor tensor, int from, const Group& group, int tag = 0);
[[nodiscard]] Pending receive_async(at::Tensor tensor, int from, const Group& group, int tag = 0);

}  // namespace bellows::comm
