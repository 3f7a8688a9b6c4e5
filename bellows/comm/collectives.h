#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

/// Collectives of a group. All ranks of the group call the same functions in the same order, with tensors of the same
/// dtype and shape. A World can be passed as the group of all ranks.
///
/// Throws: c10::ValueError if the arguments are invalid on every rank. c10::Error if a rank ended, called another
///         collective or exceeded the World's timeout (the message names the rank and its last call)
/// Ref:    torch.distributed
namespace bellows::comm {

enum class Reduce { sum, mean, product, min, max };

/// A collective that runs in the background.
class Pending {
 public:
  struct State;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Waits until the collective is done. Do not touch its tensors before.
  /// Returns: the result of the collective. Throws: like the collective; later calls throw the same exception again
  at::Tensor wait();

 private:
  std::shared_ptr<State> state_;
};

/// Reduces the ranks' tensors elementwise, in place on every rank. `mean` requires floating-point tensors.
/// Numerics: bit-identical on every rank; the order of the sum depends on the number of ranks
/// Cost:     each of n ranks sends and receives 2 (n - 1) / n of the tensor's bytes
at::Tensor all_reduce(at::Tensor tensor, const Group& group, Reduce op = Reduce::sum);
[[nodiscard]] Pending all_reduce_async(at::Tensor tensor, const Group& group, Reduce op = Reduce::sum);

/// Copies the tensor of `root` to every rank, in place.
/// Params: root – rank in the group
at::Tensor broadcast(at::Tensor tensor, int root, const Group& group);
[[nodiscard]] Pending broadcast_async(at::Tensor tensor, int root, const Group& group);

/// Collects the tensors of all ranks on every rank: [D0, …] → [size, D0, …].
at::Tensor all_gather(const at::Tensor& tensor, const Group& group);
[[nodiscard]] Pending all_gather_async(const at::Tensor& tensor, const Group& group);

/// Replaces the r-th part of the tensor by that of rank r, in place on every rank: [size · D0, …], contiguous.
at::Tensor all_gather_in_place(at::Tensor tensor, const Group& group);
[[nodiscard]] Pending all_gather_in_place_async(at::Tensor tensor, const Group& group);

/// Sends the r-th part of each rank's tensor to rank r, which gets the parts in rank order: [size, …] → [size, …].
/// Cost: each of n ranks sends and receives (n - 1) / n of the tensor's bytes
at::Tensor all_to_all(const at::Tensor& tensor, const Group& group);

/// Reduces the tensors and returns the r-th part on rank r: [size · D0, …] → [D0, …].
/// Numerics: Gloo sums in rank order
/// Cost: each of n ranks sends and receives (n - 1) / n of the tensor's bytes; Gloo needs temporary memory of the
///       tensor's size
at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group, Reduce op = Reduce::sum);
[[nodiscard]] Pending reduce_scatter_async(const at::Tensor& tensor, const Group& group, Reduce op = Reduce::sum);

/// Returns after all ranks have called it.
void barrier(const Group& group);

/// Broadcast and all-gather of byte strings. The ranks' strings may differ in length.
std::string broadcast_string(const std::string& bytes, int root, const Group& group);
std::vector<std::string> all_gather_strings(const std::string& bytes, const Group& group);

}  // namespace bellows::comm
