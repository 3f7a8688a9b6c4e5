#include "bellows/parallel/pipeline/stage_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace bellows::parallel {

namespace {

constexpr int64_t most_dims = 8;

}  // namespace

std::vector<StageMessage> messages_between(const PipelineSchedule& schedule, int from, int to) {
  std::vector<StageMessage> messages;
  for (const PipelineAction& action : schedule.ranks[static_cast<size_t>(from)]) {
    if (action.work == PipelineWork::backward_weight) continue;
    const bool gradient = action.work != PipelineWork::forward;
    const int other = action.stage + (gradient ? -1 : 1);
    if (other < 0 || other >= schedule.stages() || schedule.stage_ranks[static_cast<size_t>(other)] != to) continue;
    messages.push_back({gradient, action.stage, action.micro_batch});
  }
  return messages;
}

StageExchange::StageExchange(const PipelineSchedule& schedule, const comm::Group& group, c10::Device device)
    : schedule_(schedule), group_(group), device_(device) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    auto order = messages_between(schedule, rank, group.rank());
    if (!order.empty()) sources_.push_back(Source{.rank = rank, .order = std::move(order)});
  }
}

void StageExchange::begin_step() {
  for (Source& source : sources_) {
    source.posted = 0;
    source.pending.clear();
  }
  local_.clear();
  if (!sizes_known_) layouts_.clear();
}

int StageExchange::receiver_of(const StageMessage& message) const {
  return rank_of(message.stage + (message.gradient ? -1 : 1));
}

const StageExchange::Layout& StageExchange::layout_of(const StageMessage& message) const {
  return layouts_.at({message.gradient ? message.stage - 1 : message.stage, message.micro_batch});
}

bool StageExchange::needs_gradient(int stage, int micro_batch) const {
  return layouts_.at({stage, micro_batch}).needs_gradient;
}

std::string StageExchange::Layout::text() const {
  return c10::str(dtype, " [", c10::Join(", ", sizes), "] ", needs_gradient ? "with" : "without", " a gradient");
}

void StageExchange::send_layout(const Layout& layout, int to) {
  std::vector<int64_t> numbers(static_cast<size_t>(most_dims) + 3, 0);
  numbers[0] = static_cast<int64_t>(layout.dtype);
  numbers[1] = layout.needs_gradient ? 1 : 0;
  numbers[2] = static_cast<int64_t>(layout.sizes.size());
  std::copy(layout.sizes.begin(), layout.sizes.end(), numbers.begin() + 3);
  layout_sends_.push_back(comm::send_async(at::tensor(numbers, at::kLong).to(device_), to, group_));
}

StageExchange::Layout StageExchange::receive_layout(int from) {
  const at::Tensor numbers =
      comm::receive(at::zeros({most_dims + 3}, at::TensorOptions(device_).dtype(at::kLong)), from, group_).cpu();
  const auto* values = numbers.const_data_ptr<int64_t>();
  return {.dtype = static_cast<at::ScalarType>(values[0]),
          .sizes = {values + 3, values + 3 + values[2]},
          .needs_gradient = values[1] != 0};
}

void StageExchange::send(const StageMessage& message, const at::Tensor& tensor, bool needs_gradient) {
  const int to = receiver_of(message);
  const bool remote = to != group_.rank();
  if (!message.gradient) {
    const Layout layout{tensor.scalar_type(), tensor.sizes().vec(), needs_gradient};
    TORCH_CHECK_VALUE(tensor.dim() <= most_dims, "pipeline: the output of stage ", message.stage, " has ", tensor.dim(),
                      " dims. Stages can exchange tensors with at most ", most_dims, " dims.");
    Layout& known = layouts_[{message.stage, message.micro_batch}];
    TORCH_CHECK_VALUE(!sizes_known_ || known == layout, "pipeline: the output of stage ", message.stage,
                      " for micro-batch ", message.micro_batch, " changed from ", known.text(), " to ", layout.text(),
                      ", although the sizes of the inputs did not change. Call forget_sizes() on all ranks before "
                      "such steps.");
    known = layout;
    if (remote && !sizes_known_) send_layout(layout, to);
  }
  if (!remote) {
    local_[message] = tensor.detach();
  } else if (!message.gradient || layout_of(message).needs_gradient) {
    sends_.insert_or_assign(message, comm::send_async(tensor.detach(), to, group_));
  }
}

void StageExchange::post_next(Source& source) {
  const StageMessage& message = source.order[source.posted++];
  if (!message.gradient && !sizes_known_) layouts_[{message.stage, message.micro_batch}] = receive_layout(source.rank);
  const Layout& layout = layout_of(message);
  if (message.gradient && !layout.needs_gradient) return;
  at::Tensor buffer = at::empty(layout.sizes, at::TensorOptions(device_).dtype(layout.dtype));
  source.pending.insert_or_assign(message, comm::receive_async(std::move(buffer), source.rank, group_));
}

at::Tensor StageExchange::receive(const StageMessage& message) {
  const int from = rank_of(message.stage);
  if (from == group_.rank()) {
    const auto found = local_.find(message);
    if (found == local_.end()) return {};
    at::Tensor tensor = std::move(found->second);
    local_.erase(found);
    return tensor;
  }
  Source& source = *std::find_if(sources_.begin(), sources_.end(), [&](const Source& one) { return one.rank == from; });
  const auto place = std::find(source.order.begin(), source.order.end(), message) - source.order.begin();
  while (source.posted <= static_cast<size_t>(place)) post_next(source);
  // The next message may need a layout that does not exist before the sizes are known.
  if (sizes_known_ && source.posted < source.order.size()) post_next(source);
  const auto found = source.pending.find(message);
  if (found == source.pending.end()) return {};
  comm::Pending pending = std::move(found->second);
  source.pending.erase(found);
  at::Tensor tensor = pending.wait();
  // The gradient of an output shows that the output has arrived, so its memory is no longer needed.
  const auto answered = message.gradient ? sends_.find({false, message.stage - 1, message.micro_batch}) : sends_.end();
  if (answered != sends_.end()) {
    answered->second.wait();
    sends_.erase(answered);
  }
  return tensor;
}

void StageExchange::end_step() {
  for (Source& source : sources_) {  // gradients that are not needed were not received
    while (source.posted < source.order.size()) post_next(source);
    for (auto& [message, pending] : source.pending) pending.wait();
    source.pending.clear();
  }
  for (auto& [message, pending] : sends_) pending.wait();
  for (comm::Pending& pending : layout_sends_) pending.wait();
  sends_.clear();
  layout_sends_.clear();
  sizes_known_ = true;
}

}  // namespace bellows::parallel
