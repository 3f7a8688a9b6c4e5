#include "bellows/train/step/batch_placement.h"

namespace bellows::train {

std::unique_ptr<amp::AutocastGuard> make_precision_guard(const amp::Policy& policy, c10::Device device) {
  if (!policy.autocast || policy.low_weights) return nullptr;
  return std::make_unique<amp::AutocastGuard>(device.type(), policy.dtype);
}

data::Batch placed(data::Batch batch, const Recipe& recipe, c10::Device device) {
  batch = batch.to(device);
  if (!recipe.channels_last) return batch;
  NamedTensors tensors = batch.tensors();
  bool changed = false;
  for (auto& [name, tensor] : tensors) {
    if (tensor.dim() != 4 || tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) continue;
    tensor = tensor.contiguous(at::MemoryFormat::ChannelsLast);
    changed = true;
  }
  return changed ? data::Batch(std::move(tensors), batch.ids(), batch.place()) : batch;
}

}  // namespace bellows::train
