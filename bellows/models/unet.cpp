#include "bellows/models/unet.h"

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

/// Two times: 3×3 convolution, batch norm, ReLU.
class DoubleConv final : public torch::nn::Module {
 public:
  DoubleConv(int64_t in, int64_t out, int64_t between) : torch::nn::Module("DoubleConv") {
    using torch::nn::Conv2dOptions;
    const auto convolution = [](int64_t from, int64_t to) {
      return torch::nn::Conv2d(Conv2dOptions(from, to, 3).padding(1).bias(false));
    };
    const torch::nn::ReLUOptions in_place(true);
    layers_ =
        register_module("double_conv", torch::nn::Sequential(convolution(in, between), torch::nn::BatchNorm2d(between),
                                                             torch::nn::ReLU(in_place), convolution(between, out),
                                                             torch::nn::BatchNorm2d(out), torch::nn::ReLU(in_place)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers_->forward(x); }

 private:
  torch::nn::Sequential layers_{nullptr};
};

class UNetDown final : public torch::nn::Module {
 public:
  UNetDown(int64_t in, int64_t out) : torch::nn::Module("Down") {
    layers_ = register_module(
        "maxpool_conv", torch::nn::Sequential(torch::nn::MaxPool2d(2), std::make_shared<DoubleConv>(in, out, out)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers_->forward(x); }

 private:
  torch::nn::Sequential layers_{nullptr};
};

class UNetUp final : public torch::nn::Module {
 public:
  UNetUp(int64_t in, int64_t out, bool bilinear) : torch::nn::Module("Up") {
    if (!bilinear) {
      const auto options = torch::nn::ConvTranspose2dOptions(in, in / 2, 2).stride(2);
      up_ = register_module("up", torch::nn::ConvTranspose2d(options));
    }
    conv_ = register_module("conv", std::make_shared<DoubleConv>(in, out, bilinear ? in / 2 : out));
  }

  /// Params: skip – output of the encoder stage of that size
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) {
    at::Tensor y =
        up_ ? up_->forward(x) : at::upsample_bilinear2d(x, {2 * x.size(2), 2 * x.size(3)}, /*align_corners=*/true);
    // Odd sizes were rounded down by the encoder.
    const int64_t rows = skip.size(2) - y.size(2), columns = skip.size(3) - y.size(3);
    if (rows != 0 || columns != 0)
      y = at::constant_pad_nd(y, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
    return conv_->forward(at::cat({skip, y}, 1));
  }

 private:
  torch::nn::ConvTranspose2d up_{nullptr};
  std::shared_ptr<DoubleConv> conv_;
};

class UNet final : public torch::nn::Module, public layers::Blocks {
 public:
  explicit UNet(const UNetOptions& o) : options_(o) {
    const int64_t factor = o.bilinear ? 2 : 1;
    inc_ = register_module("inc", std::make_shared<DoubleConv>(o.in_channels, o.channels, o.channels));
    const auto width = [&](int64_t stage) { return o.channels << stage; };
    for (int64_t i = 1; i <= o.depth; ++i) {
      const int64_t out = width(i) / (i == o.depth ? factor : 1);
      down_.push_back(register_module("down" + std::to_string(i), std::make_shared<UNetDown>(width(i - 1), out)));
    }
    for (int64_t i = 1; i <= o.depth; ++i) {
      const int64_t stage = o.depth - i, out = width(stage) / (stage > 0 ? factor : 1);
      up_.push_back(
          register_module("up" + std::to_string(i), std::make_shared<UNetUp>(width(stage + 1), out, o.bilinear)));
    }
    auto outc = register_module("outc", std::make_shared<torch::nn::Module>("OutConv"));
    conv_ = outc->register_module("conv", torch::nn::Conv2d(o.channels, o.num_classes, 1));
  }

  at::Tensor forward(const at::Tensor& input) {
    check(input);
    std::vector<at::Tensor> skips;
    skips.reserve(down_.size());
    at::Tensor x = run([conv = inc_](const at::Tensor& y) { return conv->forward(y); }, input);
    for (const auto& down : down_) {
      skips.push_back(x);
      x = run([down](const at::Tensor& y) { return down->forward(y); }, x);
    }
    for (const auto& up : up_) {
      x = run([up, skip = skips.back()](const at::Tensor& y) { return up->forward(y, skip); }, x);
      skips.pop_back();
    }
    return conv_->forward(x);
  }

  int64_t block_count() const override { return 2 * options_.depth + 1; }

 private:
  void check(const at::Tensor& x) const {
    const int64_t smallest = int64_t{1} << options_.depth;
    TORCH_CHECK_VALUE(
        x.dim() == 4 && x.size(1) == options_.in_channels && x.size(2) >= smallest && x.size(3) >= smallest,
        "unet: expected images [N, ", options_.in_channels, ", H, W] of at least ", smallest, " x ", smallest,
        ", because ", options_.depth, " halvings must leave at least one pixel, got ", x.sizes(), ".");
  }

  UNetOptions options_;
  std::shared_ptr<DoubleConv> inc_;
  std::vector<std::shared_ptr<UNetDown>> down_;
  std::vector<std::shared_ptr<UNetUp>> up_;
  torch::nn::Conv2d conv_{nullptr};
};

}  // namespace

Model unet(const UNetOptions& options) {
  layers::check_sizes("unet",
                      {{"num_classes", options.num_classes},
                       {"in_channels", options.in_channels},
                       {"channels", options.channels},
                       {"depth", options.depth}},
                      1, 1);
  TORCH_CHECK_VALUE(options.depth <= 8, "unet: expected a depth of at most 8, got ", options.depth, ".");
  TORCH_CHECK_VALUE(!options.bilinear || options.channels % 2 == 0,
                    "unet: expected an even number of channels for bilinear, got ", options.channels, ".");
  return Model::of(std::make_shared<UNet>(options), "unet");
}

}  // namespace bellows::models
