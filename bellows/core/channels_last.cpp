#include "bellows/core/channels_last.h"

#include <torch/nn/modules/conv.h>

#include "bellows/core/model.h"

namespace bellows {

namespace {

std::vector<at::Tensor> convolution_weights(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  std::vector<at::Tensor> weights;
  for (const auto& child : modules) {
    if (auto* conv = child->as<torch::nn::Conv2d>()) weights.push_back(conv->weight);
    if (auto* conv = child->as<torch::nn::ConvTranspose2d>()) weights.push_back(conv->weight);
  }
  return weights;
}

/// For models without a torch module: finds convolutions by their class names.
std::vector<at::Tensor> convolution_weights(const Model& model) {
  std::vector<at::Tensor> weights;
  const ModuleTypes types = model.module_types();
  for (const auto& [name, tensor] : model.named_parameters()) {
    for (const auto& [path, type] : types) {
      const bool convolution = type == "Conv2d" || type == "ConvTranspose2d";
      if (convolution && tensor.dim() == 4 && name == path + ".weight") weights.push_back(tensor);
    }
  }
  return weights;
}

}  // namespace

int64_t to_channels_last(const Model& model) {
  int64_t converted = 0;
  const c10::NoGradGuard no_grad;
  const auto module = model.module_or_null();
  for (at::Tensor& weight : module ? convolution_weights(module->modules()) : convolution_weights(model)) {
    if (weight.is_contiguous(at::MemoryFormat::ChannelsLast)) continue;
    // set_data keeps the identity of the parameter, so optimizers that hold it stay valid.
    weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    if (weight.grad().defined()) weight.mutable_grad() = weight.grad().contiguous(at::MemoryFormat::ChannelsLast);
    ++converted;
  }
  return converted;
}

}  // namespace bellows
