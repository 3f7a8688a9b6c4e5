#include "bellows/comm/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "bellows/comm/pending_impl.h"

namespace bellows::comm {

namespace {

c10d::ReduceOp c10d_op(Reduce op) {
  switch (op) {
    case Reduce::product:
      return c10d::ReduceOp::PRODUCT;
    case Reduce::min:
      return c10d::ReduceOp::MIN;
    case Reduce::max:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;  // Gloo has no mean, so wait() divides
  }
}

void check_root(const char* name, int root, const Group& group) {
  TORCH_CHECK_VALUE(root >= 0 && root < group.size(), name, ": got root ", root, ", expected a rank of group ",
                    group.name(), ", 0 to ", group.size() - 1, ".");
}

void check_mean(const char* name, Reduce op, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(op != Reduce::mean || tensor.is_floating_point() || tensor.is_complex(), name,
                    ": mean needs floating-point numbers, got ", tensor.scalar_type(), ".");
}

void check_divisible(const char* name, const at::Tensor& tensor, const Group& group) {
  TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) % group.size() == 0, name, ": expected dim 0 to be a ",
                    "multiple of the ", group.size(), " ranks of group ", group.name(), ", got shape [",
                    c10::Join(", ", tensor.sizes()), "]. Pad the tensor.");
}

}  // namespace

Pending all_reduce_async(at::Tensor tensor, const Group& group, Reduce op) {
  check_tensor("all_reduce", tensor, group);
  check_mean("all_reduce", op, tensor);
  if (nothing_to_exchange(tensor, group)) return finished(group, std::move(tensor));
  const at::Tensor buffer = tensor.contiguous();
  return start_call(
      {.group = group, .result = std::move(tensor), .buffer = buffer, .divisor = op == Reduce::mean ? group.size() : 1},
      [&](c10d::ProcessGroup& ranks, const Pending::State& state) {
        std::vector<at::Tensor> tensors = {state.buffer};
        return ranks.allreduce(tensors, {.reduceOp = c10d_op(op)});
      });
}

Pending broadcast_async(at::Tensor tensor, int root, const Group& group) {
  check_tensor("broadcast", tensor, group);
  check_root("broadcast", root, group);
  if (nothing_to_exchange(tensor, group)) return finished(group, std::move(tensor));
  const at::Tensor buffer = tensor.contiguous();
  return start_call({.group = group, .result = std::move(tensor), .buffer = buffer},
                    [&](c10d::ProcessGroup& ranks, const Pending::State& state) {
                      std::vector<at::Tensor> tensors = {state.buffer};
                      return ranks.broadcast(tensors, {.rootRank = root});
                    });
}

Pending all_gather_async(const at::Tensor& tensor, const Group& group) {
  check_tensor("all_gather", tensor, group);
  if (group.size() == 1) return finished(group, tensor.unsqueeze(0).clone());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const at::Tensor result = at::empty(sizes, tensor.options());
  if (tensor.numel() == 0) return finished(group, result);
  return start_call({.group = group, .result = result, .buffer = result, .source = tensor.contiguous()},
                    [](c10d::ProcessGroup& ranks, Pending::State& state) {
                      // Gloo needs the ranks' parts along an existing dim.
                      at::Tensor out = state.result.view({-1}), in = state.source.view({-1});
                      return ranks._allgather_base(out, in);
                    });
}

Pending all_gather_in_place_async(at::Tensor tensor, const Group& group) {
  check_tensor("all_gather_in_place", tensor, group);
  check_divisible("all_gather_in_place", tensor, group);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "all_gather_in_place: expected a contiguous tensor, got strides ",
                    tensor.strides(), ".");
  if (nothing_to_exchange(tensor, group)) return finished(group, std::move(tensor));
  return start_call({.group = group, .result = tensor, .buffer = tensor},
                    [&](c10d::ProcessGroup& ranks, const Pending::State& state) {
                      at::Tensor out = state.result.view({-1});
                      at::Tensor in = out.chunk(group.size())[static_cast<size_t>(group.rank())];
                      return ranks._allgather_base(out, in);
                    });
}

at::Tensor all_to_all(const at::Tensor& tensor, const Group& group) {
  check_tensor("all_to_all", tensor, group);
  TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) == group.size(), "all_to_all: expected a part for each of the ",
                    group.size(), " ranks of group ", group.name(), " along dim 0, got shape [",
                    c10::Join(", ", tensor.sizes()), "].");
  if (group.size() == 1) return tensor.clone();
  const at::Tensor result = at::empty(tensor.sizes(), tensor.options());
  if (tensor.numel() == 0) return result;
  return start_call({.group = group, .result = result, .buffer = result, .source = tensor.contiguous()},
                    [](c10d::ProcessGroup& ranks, Pending::State& state) {
                      std::vector<int64_t> even;
                      return ranks.alltoall_base(state.result, state.source, even, even);
                    })
      .wait();
}

Pending reduce_scatter_async(const at::Tensor& tensor, const Group& group, Reduce op) {
  check_tensor("reduce_scatter", tensor, group);
  check_mean("reduce_scatter", op, tensor);
  check_divisible("reduce_scatter", tensor, group);
  if (group.size() == 1) return finished(group, tensor.clone());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] /= group.size();
  const at::Tensor result = at::empty(sizes, tensor.options());
  if (tensor.numel() == 0) return finished(group, result);
  return start_call({.group = group,
                     .result = result,
                     .buffer = result,
                     .source = tensor.contiguous(),
                     .divisor = op == Reduce::mean ? group.size() : 1},
                    [&](c10d::ProcessGroup& ranks, Pending::State& state) {
                      return ranks._reduce_scatter_base(state.result, state.source, {.reduceOp = c10d_op(op)});
                    });
}

at::Tensor all_reduce(at::Tensor tensor, const Group& group, Reduce op) {
  return all_reduce_async(std::move(tensor), group, op).wait();
}

at::Tensor broadcast(at::Tensor tensor, int root, const Group& group) {
  return broadcast_async(std::move(tensor), root, group).wait();
}

at::Tensor all_gather(const at::Tensor& tensor, const Group& group) {
  return all_gather_async(tensor, group).wait();
}

at::Tensor all_gather_in_place(at::Tensor tensor, const Group& group) {
  return all_gather_in_place_async(std::move(tensor), group).wait();
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group, Reduce op) {
  return reduce_scatter_async(tensor, group, op).wait();
}

void barrier(const Group& group) {
  if (group.size() == 1) return;
  start_call({.group = group}, [](c10d::ProcessGroup& ranks, const Pending::State&) { return ranks.barrier(); }).wait();
}

std::string broadcast_string(const std::string& bytes, int root, const Group& group) {
  check_root("broadcast_string", root, group);
  if (group.size() == 1) return bytes;
  const auto length = broadcast(at::tensor(static_cast<int64_t>(bytes.size())), root, group).item<int64_t>();
  at::Tensor content = at::zeros({length}, at::kByte);
  if (group.rank() == root) std::memcpy(content.data_ptr(), bytes.data(), bytes.size());
  if (length > 0) broadcast(content, root, group);
  return {static_cast<const char*>(content.data_ptr()), static_cast<size_t>(length)};
}

std::vector<std::string> all_gather_strings(const std::string& bytes, const Group& group) {
  if (group.size() == 1) return {bytes};
  const at::Tensor lengths = all_gather(at::tensor(static_cast<int64_t>(bytes.size())), group);
  at::Tensor padded = at::zeros({std::max<int64_t>(lengths.max().item<int64_t>(), 1)}, at::kByte);
  std::memcpy(padded.data_ptr(), bytes.data(), bytes.size());
  const at::Tensor all = all_gather(padded, group);
  std::vector<std::string> result;
  result.reserve(static_cast<size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    result.emplace_back(static_cast<const char*>(all[rank].data_ptr()),
                        static_cast<size_t>(lengths[rank].item<int64_t>()));
  }
  return result;
}

}  // namespace bellows::comm
