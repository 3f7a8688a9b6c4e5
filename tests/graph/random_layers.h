#pragma once

#include "tests/graph/support.h"

#include "bellows/optim/optimizers.h"

/// The layers of programs that nobody wrote: images of four channels go in and come out, so that any may follow any.
namespace bellows::graph::testing {

/// A small network's weights, and optimizers that change them. Each call sees what the last one left.
class Layers {
 public:
  static bool takes(const at::Tensor& a) {
    return a.dim() == 4 && a.size(1) == channels && a.size(0) > 0 && a.size(2) > 1 && a.size(3) > 1 &&
           a.scalar_type() == at::kFloat;
  }

  at::Tensor run(int which, const at::Tensor& image) const {
    switch (which % 15) {
      case 0:
        return at::conv2d(image, kernel_, bias_, 1, 1);
      case 1:
        return at::conv2d(image, kernel_, {}, 2, 1);
      case 2:
        return at::conv2d(image, kernel_.slice(1, 0, 1), bias_, 1, 1, 1, channels);
      case 3:
        return at::conv_transpose2d(image, kernel_, {}, 2, 1, 1);
      case 4:
        return normed(image, true);
      case 5:
        return normed(at::conv2d(image, kernel_, {}, 1, 1), false).relu();
      case 6:
        // libtorch's gradient of a channels-last image writes where nobody wants one.
        return at::group_norm(image.contiguous(), 2, scale_, bias_, 0.1);
      case 7:
        return at::max_pool2d(image, {3, 3}, {1 + which / 10 % 2}, {1, 1});
      case 8:
        return at::avg_pool2d(image, {2, 2}, {2, 2});
      case 9:
        return at::upsample_nearest2d(image, {image.size(2) + 2, image.size(3) + 2});
      case 10:
        return image.contiguous(which / 14 % 2 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
      case 11:
        return at::cat({at::conv2d(image, kernel_, {}, 1, 1), image}, 1).narrow(1, which / 14 % 5, channels);
      case 12:
        return at::conv2d(at::cat({at::conv2d(image, kernel_, {}, 1, 1), image}, 1),
                          at::cat({kernel_.flip(2), kernel_}, 1), bias_, 1, 1);
      case 13:
        return normed(at::conv2d(image, kernel_, bias_, 1, 1), true).relu_();
      default:
        return (at::conv2d(image, kernel_.flip(3), bias_, 1, 1) + image).relu_();
    }
  }

  /// One step down the loss, by one of the optimizers.
  void step(int which, const at::Tensor& loss) {
    const Tensors gradients = torch::autograd::grad({loss}, weights(), {}, true, false, true);
    for (size_t i = 0; i < gradients.size(); ++i) weights()[i].mutable_grad() = gradients[i];
    if (!optimizers_[which % 6]) optimizers_[which % 6] = make(which % 6);
    optimizers_[which % 6]->step();
    if (which % 4) optimizers_[which % 6]->zero_grad(which % 2);
  }

  Tensors weights() const { return {kernel_, bias_, scale_}; }

  /// All that a call may change.
  Tensors state() const {
    Tensors all = weights();
    all.insert(all.end(), {mean_, var_});
    for (const at::Tensor& weight : weights()) all.push_back(weight.grad());
    return all;
  }

 private:
  static constexpr int64_t channels = 4;

  at::Tensor normed(const at::Tensor& image, bool training) const {
    return at::batch_norm(image, scale_, bias_, mean_, var_, training, 0.1, 0.1, false);
  }

  /// Their eps is large: what a gradient's rounding makes of a sign must not decide a step.
  std::unique_ptr<optim::LibtorchOptimizer> make(int which) const {
    using enum optim::Impl;
    switch (which) {
      case 0:
        return std::make_unique<optim::SGD>(weights(), optim::SGDOptions{.lr = 0.01, .momentum = 0.9, .impl = foreach});
      case 1:
        return std::make_unique<optim::SGD>(
            weights(), optim::SGDOptions{.lr = 0.01, .momentum = 0.8, .nesterov = true, .impl = fused});
      case 2:
        return std::make_unique<optim::Adam>(weights(), optim::AdamOptions{.lr = 0.01, .eps = 0.1, .impl = foreach});
      case 3:
        return std::make_unique<optim::Adam>(weights(),
                                             optim::AdamOptions{.lr = 0.01, .eps = 0.1, .amsgrad = true, .impl = loop});
      case 4:
        return std::make_unique<optim::AdamW>(weights(), optim::AdamWOptions{.lr = 0.01, .eps = 0.1, .impl = foreach});
      default:
        return std::make_unique<optim::AdamW>(weights(), optim::AdamWOptions{.lr = 0.01, .eps = 0.1, .impl = fused});
    }
  }

  at::Tensor kernel_ = (torch::randn({channels, channels, 3, 3}) / 6).requires_grad_();
  at::Tensor bias_ = torch::randn({channels}).requires_grad_(), scale_ = torch::rand({channels}).requires_grad_();
  at::Tensor mean_ = torch::zeros({channels}), var_ = torch::ones({channels});
  std::array<std::unique_ptr<optim::LibtorchOptimizer>, 6> optimizers_;
};

}  // namespace bellows::graph::testing
