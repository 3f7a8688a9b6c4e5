#pragma once

#include <torch/torch.h>

#include <vector>

#include "bellows/core/model.h"

/// Small models for tests of quantization.
namespace bellows::quant::samples {

/// Two convolutions with norms, and a linear. The result of the second convolution is read twice, so its norm cannot be
/// folded.
struct SmallImpl : torch::nn::Module {
  SmallImpl() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(16));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).padding(1)));
    other = register_module("other", torch::nn::BatchNorm2d(16));
    last = register_module("last", torch::nn::Linear(16 * 5 * 5, 10));
    const torch::NoGradGuard no_gradients;
    for (const auto& one : {norm, other}) {
      one->running_mean.normal_(0, 0.3);
      one->running_var.uniform_(0.5, 2);
      one->weight.uniform_(0.5, 1.5);
      one->bias.normal_();
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor before = torch::max_pool2d(torch::relu(norm(first(x))), 2);
    const at::Tensor y = second(before);
    return last(torch::relu(other(y) + y + before).flatten(1));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm2d norm{nullptr}, other{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Small);

/// A model whose embedding and last linear share one weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    words = register_module("words", torch::nn::Embedding(20, 10));
    inner = register_module("inner", torch::nn::Linear(10, 30));
    odd = register_module("odd", torch::nn::Linear(16, 20));
    small = register_module("small", torch::nn::Linear(30, 2));
    up = register_module("up", torch::nn::Linear(10, 16));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = words(ids);
    return torch::matmul(x, words->weight.t()).sum() + small(inner(x)).sum() + odd(up(x)).sum();
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear inner{nullptr}, odd{nullptr}, small{nullptr}, up{nullptr};
};
TORCH_MODULE(Tied);

/// Token, position and type embeddings, a linear, and logits, whose weight may be that of the token embedding.
struct TextImpl : torch::nn::Module {
  explicit TextImpl(bool tied = false, int64_t width = 32) : tied_(tied) {
    torch::manual_seed(9);
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, width).padding_idx(0)));
    positions = register_module("positions", torch::nn::Embedding(16, width));
    types = register_module("types", torch::nn::Embedding(2, width));
    inner = register_module("inner", torch::nn::Linear(width, width));
    if (!tied) head = register_module("head", torch::nn::Linear(width, 7));
  }
  at::Tensor embed(const at::Tensor& ids) {
    const at::Tensor word = words(ids), type = types->weight[1];
    return word + type + positions->weight.slice(0, 0, ids.size(1));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor y = torch::relu(inner(embed(ids)));
    return tied_ ? torch::matmul(y, words->weight.t()) : head(y);
  }
  torch::nn::Embedding words{nullptr}, positions{nullptr}, types{nullptr};
  torch::nn::Linear inner{nullptr}, head{nullptr};

 private:
  bool tied_;
};
TORCH_MODULE(Text);

inline std::vector<std::vector<at::Tensor>> texts(int64_t samples = 6, int64_t length = 11) {
  torch::manual_seed(12);
  return {{torch::randint(0, 50, {samples, length})}};
}

/// Attention whose query, key and value are results of linears, and a linear behind it.
struct AttendingImpl : torch::nn::Module {
  AttendingImpl() {
    torch::manual_seed(3);
    query = register_module("self_query", torch::nn::Linear(24, 24));
    key = register_module("self_key", torch::nn::Linear(24, 24));
    value = register_module("self_value", torch::nn::Linear(24, 24));
    last = register_module("last", torch::nn::Linear(24, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const at::Tensor& y) { return y.view({x.size(0), x.size(1), 3, 8}).transpose(1, 2); };
    const at::Tensor y = at::scaled_dot_product_attention(heads(query(x)), heads(key(x)), heads(value(x)), mask);
    return last(y.transpose(1, 2).reshape(x.sizes()));
  }
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, last{nullptr};
  std::optional<at::Tensor> mask{};
};
TORCH_MODULE(Attending);

template <class Holder>
Model model_of(const Holder& net) {
  const auto& module = net.ptr();
  Model model("net", module, [module](const at::Tensor& x) { return module->forward(x); });
  model.eval();
  return model;
}

inline std::vector<std::vector<at::Tensor>> batches_of(at::IntArrayRef shape, int count = 2) {
  torch::manual_seed(11);
  std::vector<std::vector<at::Tensor>> batches;
  batches.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) batches.push_back({torch::randn(shape)});
  return batches;
}

/// Returns the result of the model without gradients.
inline at::Tensor plain(const Model& model, const at::Tensor& x) {
  const torch::NoGradGuard no_gradients;
  return model.forward(x);
}

}  // namespace bellows::quant::samples
