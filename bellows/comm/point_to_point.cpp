#include "bellows/comm/point_to_point.h"

#include "bellows/comm/pending_impl.h"

namespace bellows::comm {

namespace {

void check_other_rank(const char* name, int other, const Group& group, int tag) {
  TORCH_CHECK_VALUE(other >= 0 && other < group.size() && other != group.rank(), name, ": got rank ", other,
                    ", expected another rank of group ", group.name(), " (size ", group.size(), ", this is rank ",
                    group.rank(), ").");
  TORCH_CHECK_VALUE(tag >= 0, name, ": tag must be at least 0, got ", tag, " (group ", group.name(), ").");
}

}  // namespace

Pending send_async(const at::Tensor& tensor, int to, const Group& group, int tag) {
  check_tensor("send", tensor, group);
  check_other_rank("send", to, group, tag);
  if (nothing_to_exchange(tensor, group)) return finished(group, tensor);
  return start_call({.group = group, .result = tensor, .buffer = tensor, .source = tensor.detach().contiguous()},
                    [&](c10d::ProcessGroup& ranks, const Pending::State& state) {
                      std::vector<at::Tensor> tensors = {state.source};
                      return ranks.send(tensors, to, tag);
                    });
}

Pending receive_async(at::Tensor tensor, int from, const Group& group, int tag) {
  check_tensor("receive", tensor, group);
  check_other_rank("receive", from, group, tag);
  if (nothing_to_exchange(tensor, group)) return finished(group, std::move(tensor));
  const at::Tensor buffer = tensor.contiguous();
  return start_call({.group = group, .result = std::move(tensor), .buffer = buffer},
                    [&](c10d::ProcessGroup& ranks, const Pending::State& state) {
                      std::vector<at::Tensor> tensors = {state.buffer};
                      return ranks.recv(tensors, from, tag);
                    });
}

at::Tensor send(const at::Tensor& tensor, int to, const Group& group, int tag) {
  return send_async(tensor, to, group, tag).wait();
}

at::Tensor receive(at::Tensor tensor, int from, const Group& group, int tag) {
  return receive_async(std::move(tensor), from, group, tag).wait();
}

}  // namespace bellows::comm
