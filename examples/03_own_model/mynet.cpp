// A model of one's own. The last line makes it known by name, in a program and in a plugin alike.
#include <bellows/models/register_model.h>
#include <torch/torch.h>

namespace nn = torch::nn;

struct MyNetImpl : nn::Module {
  // What the data say: BELLOWS_MODEL passes it on. (num_classes) alone, or no arguments, would do, too.
  MyNetImpl(int64_t num_classes, int64_t in_channels) {
    features = register_module(
        "features", nn::Sequential(layer(in_channels, 16, 1), nn::BatchNorm2d(16), nn::ReLU(), layer(16, 32, 2),
                                   nn::BatchNorm2d(32), nn::ReLU(), layer(32, 32, 1), nn::BatchNorm2d(32), nn::ReLU()));
    classifier = register_module("classifier", nn::Linear(32, num_classes));
  }

  torch::Tensor forward(const torch::Tensor& x) { return classifier(features->forward(x).mean({2, 3})); }

  static nn::Conv2d layer(int64_t in, int64_t out, int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
  }

  nn::Sequential features{nullptr};
  nn::Linear classifier{nullptr};
};
TORCH_MODULE(MyNet);

BELLOWS_MODEL("mynet", MyNet, .description = "three convolutions");
