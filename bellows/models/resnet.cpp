#include "bellows/models/resnet.h"

#include <torch/torch.h>

#include <vector>

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

namespace nn = torch::nn;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// A residual block: convolutions with batch norms and, if the shapes differ, a 1×1 projection on the shortcut.
class BlockImpl : public nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor shortcut = downsample_ ? downsample_->forward(x) : x;
    return residual(x).add_(shortcut).relu_();
  }

 protected:
  explicit BlockImpl(nn::Sequential downsample) : downsample_(std::move(downsample)) {}
  virtual at::Tensor residual(const at::Tensor& x) = 0;
  // Last in the state dict, but first to draw random numbers, as in torchvision.
  void register_downsample() {
    if (downsample_) register_module("downsample", downsample_);
  }

 private:
  nn::Sequential downsample_{nullptr};
};

class BasicBlock final : public BlockImpl {
 public:
  static constexpr int64_t expansion = 1;

  BasicBlock(int64_t in, int64_t width, int64_t stride, nn::Sequential downsample) : BlockImpl(std::move(downsample)) {
    conv1_ = register_module("conv1", conv(in, width, 3, stride));
    bn1_ = register_module("bn1", nn::BatchNorm2d(width));
    conv2_ = register_module("conv2", conv(width, width, 3, 1));
    bn2_ = register_module("bn2", nn::BatchNorm2d(width));
    register_downsample();
  }

 private:
  at::Tensor residual(const at::Tensor& x) override {
    return bn2_->forward(conv2_->forward(bn1_->forward(conv1_->forward(x)).relu_()));
  }

  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::BatchNorm2d bn1_{nullptr}, bn2_{nullptr};
};

class Bottleneck final : public BlockImpl {
 public:
  static constexpr int64_t expansion = 4;

  Bottleneck(int64_t in, int64_t width, int64_t stride, nn::Sequential downsample) : BlockImpl(std::move(downsample)) {
    conv1_ = register_module("conv1", conv(in, width, 1, 1));
    bn1_ = register_module("bn1", nn::BatchNorm2d(width));
    conv2_ = register_module("conv2", conv(width, width, 3, stride));
    bn2_ = register_module("bn2", nn::BatchNorm2d(width));
    conv3_ = register_module("conv3", conv(width, width * expansion, 1, 1));
    bn3_ = register_module("bn3", nn::BatchNorm2d(width * expansion));
    register_downsample();
  }

 private:
  at::Tensor residual(const at::Tensor& x) override {
    const at::Tensor y = bn1_->forward(conv1_->forward(x)).relu_();
    return bn3_->forward(conv3_->forward(bn2_->forward(conv2_->forward(y)).relu_()));
  }

  nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  nn::BatchNorm2d bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr};
};

struct Layout {
  std::string name;
  bool large_images;                    // a 7×7 stem of stride 2 with pooling, else a 3×3 stem
  std::vector<int64_t> widths, blocks;  // one entry per stage
};

class ResNet final : public nn::Module, public layers::Blocks {
 public:
  template <class Block>
  static Model make(const Layout& layout, int64_t num_classes, int64_t in_channels) {
    TORCH_CHECK_VALUE(num_classes >= 1 && in_channels >= 1, layout.name,
                      ": expected num_classes and in_channels of at least 1, got ", num_classes, " and ", in_channels,
                      ".");
    auto module = std::make_shared<ResNet>();
    module->build<Block>(layout, num_classes, in_channels);
    module->initialize();
    return Model::of(module, layout.name);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = bn1_->forward(conv1_->forward(x)).relu_();
    if (large_images_) y = torch::max_pool2d(y, 3, 2, 1);
    y = run_stages(std::move(y));
    return fc_->forward(torch::flatten(torch::adaptive_avg_pool2d(y, {1, 1}), 1));
  }

  int64_t block_count() const override { return static_cast<int64_t>(blocks_.size()); }

 private:
  at::Tensor run_stages(at::Tensor y) {
    if (has_callback()) {
      for (const auto& block : blocks_) y = run([block](const at::Tensor& z) { return block->forward(z); }, y);
    } else {  // as Sequential, whose results can be captured; nothing keeps the input of a stage
      for (auto& stage : stages_) y = stage->forward(std::move(y));
    }
    return y;
  }

  template <class Block>
  void build(const Layout& layout, int64_t num_classes, int64_t in_channels) {
    large_images_ = layout.large_images;
    int64_t channels = layout.widths.front();
    conv1_ =
        register_module("conv1", large_images_ ? conv(in_channels, channels, 7, 2) : conv(in_channels, channels, 3, 1));
    bn1_ = register_module("bn1", nn::BatchNorm2d(channels));
    for (size_t i = 0; i < layout.widths.size(); ++i) {
      nn::Sequential stage;
      for (int64_t j = 0; j < layout.blocks[i]; ++j) {
        const int64_t width = layout.widths[i], out = width * Block::expansion, stride = i > 0 && j == 0 ? 2 : 1;
        nn::Sequential downsample{nullptr};
        if (stride != 1 || channels != out)
          downsample = nn::Sequential(conv(channels, out, 1, stride), nn::BatchNorm2d(out));
        blocks_.push_back(std::make_shared<Block>(channels, width, stride, downsample));
        stage->push_back(std::static_pointer_cast<Block>(blocks_.back()));
        channels = out;
      }
      stages_.push_back(register_module("layer" + std::to_string(i + 1), stage));
    }
    fc_ = register_module("fc", nn::Linear(channels, num_classes));
  }

  // Replaces the initial values of the constructors in torchvision's order, so that the same seed gives the same
  // weights.
  void initialize() {
    for (auto& module : modules(/*include_self=*/false)) {
      if (auto* c = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(c->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }

  bool large_images_ = true;
  nn::Conv2d conv1_{nullptr};
  nn::BatchNorm2d bn1_{nullptr};
  std::vector<std::shared_ptr<BlockImpl>> blocks_;
  std::vector<nn::Sequential> stages_;
  nn::Linear fc_{nullptr};
};

const std::vector<int64_t> imagenet_widths = {64, 128, 256, 512};

}  // namespace

Model resnet18(const ResNetOptions& options) {
  return ResNet::make<BasicBlock>({"resnet18", true, imagenet_widths, {2, 2, 2, 2}}, options.num_classes,
                                  options.in_channels);
}

Model resnet34(const ResNetOptions& options) {
  return ResNet::make<BasicBlock>({"resnet34", true, imagenet_widths, {3, 4, 6, 3}}, options.num_classes,
                                  options.in_channels);
}

Model resnet50(const ResNetOptions& options) {
  return ResNet::make<Bottleneck>({"resnet50", true, imagenet_widths, {3, 4, 6, 3}}, options.num_classes,
                                  options.in_channels);
}

Model resnet101(const ResNetOptions& options) {
  return ResNet::make<Bottleneck>({"resnet101", true, imagenet_widths, {3, 4, 23, 3}}, options.num_classes,
                                  options.in_channels);
}

Model resnet152(const ResNetOptions& options) {
  return ResNet::make<Bottleneck>({"resnet152", true, imagenet_widths, {3, 8, 36, 3}}, options.num_classes,
                                  options.in_channels);
}

Model digits_resnet(const DigitsResNetOptions& options) {
  const auto [num_classes, in_channels, width, blocks] = options;
  TORCH_CHECK_VALUE(width >= 1 && blocks >= 1, "digits_resnet: expected width and blocks of at least 1, got ", width,
                    " and ", blocks, ".");
  const Layout layout{"digits_resnet", false, {width, 2 * width, 4 * width}, {blocks, blocks, blocks}};
  return ResNet::make<BasicBlock>(layout, num_classes, in_channels);
}

}  // namespace bellows::models
