#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::parallel::testing::zero {

/// Numbers that look random, the same everywhere. Shapes: any
inline at::Tensor made_up(at::IntArrayRef sizes, at::ScalarType dtype, double seed) {
  const int64_t count = c10::multiply_integers(sizes);
  return at::arange(count, at::kDouble).mul(1.7 + seed * 0.31).add(seed).sin().mul(0.5).reshape(sizes).to(dtype);
}

/// A small model with all that is awkward to share: channels-last weights, tied ones, a number, tensors smaller than the
/// world, a parameter without a gradient, one that is frozen.
class Net final : public Model::Impl {
 public:
  explicit Net(at::ScalarType dtype = at::kDouble, double seed = 0) : dtype_(dtype) {
    const auto weight = [&](at::IntArrayRef sizes) { return made_up(sizes, dtype, ++seed).requires_grad_(true); };
    const at::Tensor conv = made_up({6, 2, 3, 3}, dtype, ++seed).contiguous(at::MemoryFormat::ChannelsLast);
    tied_ = weight({7, 7});
    named_ = {{"conv.weight", at::Tensor(conv).requires_grad_(true)},
              {"conv.bias", weight({6})},
              {"fc.weight", weight({7, 6})},
              {"fc.bias", weight({7})},
              {"tied.weight", tied_},
              {"unused", weight({5})},
              {"gain", weight({})},
              {"shift", weight({1})},
              {"frozen", made_up({3}, dtype, ++seed)},
              {"head.weight", tied_}};
  }

  at::Tensor forward(const at::Tensor& input) override {
    const auto p = [&](size_t i) { return named_[i].second; };
    const at::Tensor image = at::relu(at::conv2d(input.to(dtype_), p(0), p(1)));
    const at::Tensor hidden = at::tanh(at::linear(image.mean({2, 3}), p(2), p(3)));
    return at::linear(at::tanh(at::linear(hidden, tied_)), tied_.t()) * p(6) + p(7) + p(8).sum();
  }
  /// Mean over the rows of the global batch of step `step` that belong to rank `rank` of `ranks`.
  at::Tensor loss(int64_t step, int64_t rank, int64_t ranks, int64_t rows = 12) {
    TORCH_CHECK(rows % ranks == 0, "expected rows for all ranks");
    const at::Tensor x = made_up({rows, 2, 5, 5}, dtype_, static_cast<double>(step) + 0.5).chunk(ranks)[rank];
    const at::Tensor y = made_up({rows, 7}, dtype_, static_cast<double>(step) + 0.25).chunk(ranks)[rank];
    return (forward(x) - y).square().mean();
  }

  NamedTensors named_parameters() const override { return named_; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return true; }
  void to(c10::Device) override {}

  /// Each once, frozen ones too.
  std::vector<at::Tensor> distinct() const {
    std::vector<at::Tensor> result;
    for (const auto& [name, tensor] : named_) {
      if (name != "head.weight") result.push_back(tensor);
    }
    return result;
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : distinct()) result.push_back(tensor.detach().clone());
    return result;
  }

 private:
  at::ScalarType dtype_;
  at::Tensor tied_;
  NamedTensors named_;
};

/// A net, and the handle by which the rest of Bellows sees it.
struct NetModel {
  std::shared_ptr<Net> net;
  Model model;
  explicit NetModel(at::ScalarType dtype = at::kDouble, double seed = 0)
      : net(std::make_shared<Net>(dtype, seed)), model("net", net) {}
};

}  // namespace bellows::parallel::testing::zero
