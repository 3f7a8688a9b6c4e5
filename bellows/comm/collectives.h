#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

/// What the ranks of a group compute together. All ranks call the same function in the same order with tensors of the same
/// dtype and shape. A World serves as the group of all.
///
/// Throws: c10::ValueError – arguments that no rank could use; c10::Error – a rank has ended, called something else, or
///         did not come within the World's timeout: which one, and what it called last
/// Ref:    torch.distributed
namespace bellows::comm {

enum class Reduce { sum, mean, product, min, max };

/// A collective that runs while this rank goes on.
class Pending {
 public:
  struct State;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Waits until it is done; the tensors must not be touched before.
  /// Returns: the collective's result. Throws: as the collective, and the same once more when it is called again
  at::Tensor wait();

 private:
  std::shared_ptr<State> state_;
};

/// Every rank gets the ranks' tensors reduced elementwise, in place; mean is for floating-point tensors.
/// Numerics: the same bits on every rank; the order of the sum depends on the number of ranks
/// Cost:     2 (n - 1) / n of the tensor's bytes sent and received by each of n ranks
at::Tensor all_reduce(at::Tensor tensor, const Group& group, Reduce op = Reduce::sum);
[[nodiscard]] Pending all_reduce_async(at::Tensor tensor, const Group& group, Reduce op = Reduce::sum);

/// Every rank gets the tensor of `root`, in place.
/// Params: root – rank in the group
at::Tensor broadcast(at::Tensor tensor, int root, const Group& group);
[[nodiscard]] Pending broadcast_async(at::Tensor tensor, int root, const Group& group);

/// Every rank gets all ranks' tensors: [D0, …] → [size, D0, …].
at::Tensor all_gather(const at::Tensor& tensor, const Group& group);
[[nodiscard]] Pending all_gather_async(const at::Tensor& tensor, const Group& group);

/// Every rank's r-th part of the tensor becomes that of rank r, in place: [size · D0, …], contiguous.
at::Tensor all_gather_in_place(at::Tensor tensor, const Group& group);
[[nodiscard]] Pending all_gather_in_place_async(at::Tensor tensor, const Group& group);

/// Rank r gets the r-th part of every rank's tensor, in the ranks' order: [size, …] → [size, …].
/// Cost: (n - 1) / n of the tensor's bytes sent and received by each of n ranks
at::Tensor all_to_all(const at::Tensor& tensor, const Group& group);

/// Rank r gets the r-th part of the reduced tensor: [size · D0, …] → [D0, …].
/// Numerics: with Gloo summed in the ranks' order
/// Cost: (n - 1) / n of the tensor's bytes sent and received by each of n ranks; with Gloo as much memory as the tensor
at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group, Reduce op = Reduce::sum);
[[nodiscard]] Pending reduce_scatter_async(const at::Tensor& tensor, const Group& group, Reduce op = Reduce::sum);

/// No rank goes on before all have come.
void barrier(const Group& group);

/// Any bytes: every rank gets those of `root`, or all of them by rank. The lengths may differ.
std::string broadcast_string(const std::string& bytes, int root, const Group& group);
std::vector<std::string> all_gather_strings(const std::string& bytes, const Group& group);

}  // namespace bellows::comm
