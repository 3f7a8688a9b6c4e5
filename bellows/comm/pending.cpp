#include <algorithm>

#include "bellows/comm/pending_impl.h"

namespace bellows::comm {

at::Tensor Pending::wait() {
  if (state_->failure) std::rethrow_exception(state_->failure);
  if (!state_->work) return state_->result;
  try {
    std::exchange(state_->work, nullptr)->wait();
  } catch (...) {
    state_->failure = std::current_exception();
    throw;
  }
  if (state_->divisor != 1) state_->buffer.div_(state_->divisor);
  if (!state_->buffer.is_same(state_->result)) state_->result.copy_(state_->buffer);
  return state_->result;
}

void check_tensor(const char* name, const at::Tensor& tensor, const Group& group) {
  TORCH_CHECK_VALUE(tensor.defined(), name, ": expected a tensor, got none (group ", group.name(), ").");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name, ": expected a dense tensor, got ", tensor.layout(),
                    " (group ", group.name(), ").");
  if (group.size() == 1) return;
  const auto devices = group.state()->process_group->getDeviceTypes();
  const bool served = std::any_of(devices.begin(), devices.end(),
                                  [&](c10::Device device) { return device.type() == tensor.device().type(); });
  TORCH_CHECK_VALUE(served, name, ": the tensor is on ", tensor.device(), ", but group ", group.name(),
                    " has no backend for this device. Move the tensor to the device of the World.");
}

bool nothing_to_exchange(const at::Tensor& tensor, const Group& group) {
  return group.size() == 1 || tensor.numel() == 0;
}

Pending finished(const Group& group, at::Tensor result) {
  auto state = std::make_shared<Pending::State>(Pending::State{.group = group});
  state->result = std::move(result);
  return Pending(std::move(state));
}

}  // namespace bellows::comm
