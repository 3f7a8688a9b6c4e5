// A plugin as a user's, for plugin_command_test.cpp.
#include <torch/torch.h>

#include "bellows/models/register_model.h"
#include "bellows/nn/modules.h"

namespace {

/// Norms from a component that the command itself does not call: they must be in it all the same.
struct PluginNetImpl : torch::nn::Module {
  PluginNetImpl(int64_t num_classes, int64_t in_channels)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, 8, 3).padding(1)))),
        norm(register_module("norm", bellows::nn::LayerNorm(bellows::nn::LayerNormOptions{.normalized_shape = {128}}))),
        fc(register_module("fc", torch::nn::Linear(128, num_classes))) {}

  at::Tensor forward(const at::Tensor& x) {
    return fc(norm(torch::adaptive_avg_pool2d(torch::relu(conv(x)), {4, 4}).flatten(1)));
  }

  torch::nn::Conv2d conv;
  bellows::nn::LayerNorm norm;
  torch::nn::Linear fc;
};
TORCH_MODULE(PluginNet);

/// Whether two images are of the same class.
struct SiameseImpl : torch::nn::Module {
  explicit SiameseImpl(int64_t num_classes)
      : shared(register_module("shared", torch::nn::Linear(64, 16))),
        head(register_module("head", torch::nn::Linear(16, num_classes))) {}
  at::Tensor forward(const at::Tensor& left, const at::Tensor& right) {
    return head((shared(left.flatten(1)) - shared(right.flatten(1))).abs());
  }
  torch::nn::Linear shared, head;
};
TORCH_MODULE(Siamese);

}  // namespace

BELLOWS_MODEL("siamese", Siamese, .inputs = {{"left.png", {1, 8, 8}}, {"right.png", {1, 8, 8}}});
BELLOWS_MODEL("plugin_net", PluginNet, .description = "for tests");
#ifdef BELLOWS_TEST_TAKEN_NAME
BELLOWS_MODEL("resnet18", PluginNet);
#endif
