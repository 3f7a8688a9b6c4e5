#include <cmath>

#include "bellows/models/layers_impl.h"
#include "bellows/models/vision/auxiliary.h"

namespace bellows::models {

namespace layers {

namespace nn = torch::nn;

BasicConv::BasicConv(const nn::Conv2dOptions& options) : nn::Module("BasicConv2d") {
  nn::Conv2dOptions without_bias = options;
  conv_ = register_module("conv", nn::Conv2d(without_bias.bias(false)));
  bn_ = register_module("bn", nn::BatchNorm2d(nn::BatchNormOptions(options.out_channels()).eps(0.001)));
}

Conv basic_conv(int64_t in, int64_t out, int64_t kernel, int64_t padding, int64_t stride) {
  return std::make_shared<BasicConv>(nn::Conv2dOptions(in, out, kernel).padding(padding).stride(stride));
}

void init_truncated_normal(nn::Module& module, const std::function<double(const std::string& name)>& deviation) {
  const torch::NoGradGuard no_grad;
  constexpr double bound = 2;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    const auto& layer = item.value();
    at::Tensor weight;
    if (const auto* conv = layer->as<nn::Conv2d>()) weight = conv->weight;
    if (const auto* linear = layer->as<nn::Linear>()) weight = linear->weight;
    if (!weight.defined()) continue;
    // The inverse of the normal distribution's function, as in torch.nn.init.trunc_normal_.
    const double std = deviation(item.key()), tail = std::erf(bound / std / std::sqrt(2.0));
    const double low = 2 * ((1 - tail) / 2) - 1, high = 2 * ((1 + tail) / 2) - 1;
    weight.uniform_(low, high).erfinv_().mul_(std * std::sqrt(2.0)).add_(0.0).clamp_(-bound, bound);
  }
}

at::Tensor to_half_range(const at::Tensor& x) {
  const auto channel = [&x](int64_t i, double mean, double std) {
    return x.slice(1, i, i + 1) * (std / 0.5) + (mean - 0.5) / 0.5;
  };
  return at::cat({channel(0, 0.485, 0.229), channel(1, 0.456, 0.224), channel(2, 0.406, 0.225)}, 1);
}

void check_network(const std::string& model, const std::vector<NamedSize>& sizes,
                   std::initializer_list<double> dropout) {
  check_sizes(model, sizes, 1, 1);
  check_dropout(model, dropout);
}

void check_transform(const std::string& model, bool transform_input, int64_t in_channels) {
  TORCH_CHECK_VALUE(!transform_input || in_channels == 3, model,
                    ": expected three input channels with transform_input, got ", in_channels, ".");
}

void check_images(const std::string& model, const at::Tensor& x, int64_t channels, int64_t least) {
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(1) == channels && x.size(2) >= least && x.size(3) >= least, model,
                    ": expected images [N, ", channels, ", H, W] of at least ", least, " x ", least, ", got ",
                    x.sizes(), ". In recipes, set image_size to ", least, " or more.");
}

std::vector<at::Tensor> AuxiliaryModel::forward_all(const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(inputs.size() == 1, "Model: expected one input, got ", inputs.size(), ".");
  return outputs_->forward_all(inputs.front());
}

std::vector<std::string> AuxiliaryModel::outputs() const {
  std::vector<std::string> names = outputs_->output_names();
  if (!training()) names.resize(1);
  return names;
}

}  // namespace layers

double auxiliary_weight(const Model& model) {
  const auto* module = dynamic_cast<const layers::WithAuxiliaryOutputs*>(model.module_or_null().get());
  return module && module->has_auxiliary_outputs() ? module->auxiliary_weight() : 0;
}

}  // namespace bellows::models
