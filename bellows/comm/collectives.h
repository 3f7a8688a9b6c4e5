#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

/// Collectives of a process group. All ranks of the group must call the same functions in the same order, with tensors
/// of the same dtype and shape. To call a collective on all ranks, pass the World as the group.
/// Ranks of one machine exchange CPU tensors through shared memory (docs/distributed.md).
///
/// Throws: c10::ValueError if this rank's arguments are invalid. Ranks whose arguments are valid then throw c10::Error.
///         c10::Error if a rank ended, called a different collective or exceeded the World's timeout (the message names
///         the rank and its last call)
/// Ref:    torch.distributed
namespace bellows::comm {

enum class Reduce { sum, mean, product, min, max };

/// A collective that runs in the background.
class Pending {
 public:
  struct State;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Waits until the collective has finished. Do not access its tensors before then.
  /// Returns: the result of the collective
  /// Throws:  like the collective. Later calls throw the same exception again
  at::Tensor wait();

 private:
  std::shared_ptr<State> state_;
};

/// Reduces the ranks' tensors elementwise, in place on every rank. `mean` requires floating-point or complex tensors.
/// Numerics: bit-identical on every rank; the order of summation depends on the number of ranks. Ranks of one machine sum
///           in pairs: (0 + 1) + (2 + 3)
/// Cost:     each of n ranks sends and receives 2 (n - 1) / n of the tensor's bytes
at::Tensor all_reduce(at::Tensor tensor, const Group& group, Reduce op = Reduce::sum);
[[nodiscard]] Pending all_reduce_async(at::Tensor tensor, const Group& group, Reduce op = Reduce::sum);

/// Copies the tensor of rank `root` to every rank, in place.
/// Params: root – rank within the group
/// Cost:   each rank except `root` receives the tensor's bytes once
at::Tensor broadcast(at::Tensor tensor, int root, const Group& group);
[[nodiscard]] Pending broadcast_async(at::Tensor tensor, int root, const Group& group);

/// Gathers the tensors of all ranks on every rank: [D0, …] → [size, D0, …].
/// Cost: each of n ranks sends and receives n - 1 times the bytes of one rank's tensor
at::Tensor all_gather(const at::Tensor& tensor, const Group& group);
[[nodiscard]] Pending all_gather_async(const at::Tensor& tensor, const Group& group);

/// Gathers one part from each rank, in place on every rank: part r of the tensor becomes part r of rank r's tensor. The
/// tensor must be contiguous and have the shape [size · D0, …].
/// Cost: each of n ranks sends and receives n - 1 times the bytes of one part
at::Tensor all_gather_in_place(at::Tensor tensor, const Group& group);
[[nodiscard]] Pending all_gather_in_place_async(at::Tensor tensor, const Group& group);

/// Sends part r of each rank's tensor to rank r. Each rank gets its parts in rank order: [size, …] → [size, …].
/// Cost: each of n ranks sends and receives (n - 1) / n of the tensor's bytes
at::Tensor all_to_all(const at::Tensor& tensor, const Group& group);

/// Reduces the ranks' tensors and returns part r of the result on rank r: [size · D0, …] → [D0, …].
/// Numerics: on CPUs, sums in pairs of ranks: (0 + 1) + (2 + 3)
/// Cost:     each of n ranks sends and receives (n - 1) / n of the tensor's bytes. Gloo also needs temporary memory of
///           the tensor's size, unless the ranks share memory
at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group, Reduce op = Reduce::sum);
[[nodiscard]] Pending reduce_scatter_async(const at::Tensor& tensor, const Group& group, Reduce op = Reduce::sum);

/// Returns when all ranks have called it.
void barrier(const Group& group);

/// Broadcasts or gathers byte strings. The lengths of the ranks' strings may differ.
std::string broadcast_string(const std::string& bytes, int root, const Group& group);
std::vector<std::string> all_gather_strings(const std::string& bytes, const Group& group);

}  // namespace bellows::comm
