#include "bellows/core/channels_last.h"

#include <torch/nn/modules/conv.h>

#include "bellows/core/model.h"

namespace bellows {

int64_t to_channels_last(const Model& model) {
  int64_t converted = 0;
  const c10::NoGradGuard no_grad;
  for (const auto& child : model.module()->modules()) {
    at::Tensor* weight = nullptr;
    if (auto* conv = child->as<torch::nn::Conv2d>()) weight = &conv->weight;
    if (auto* conv = child->as<torch::nn::ConvTranspose2d>()) weight = &conv->weight;
    if (!weight || weight->is_contiguous(at::MemoryFormat::ChannelsLast)) continue;
    // set_data keeps the identity of the parameter: optimizers that hold it go on working.
    weight->set_data(weight->detach().contiguous(at::MemoryFormat::ChannelsLast));
    if (weight->grad().defined()) weight->mutable_grad() = weight->grad().contiguous(at::MemoryFormat::ChannelsLast);
    ++converted;
  }
  return converted;
}

}  // namespace bellows
