#include "bench/amp/encoder.h"

#include <torch/torch.h>

namespace bellows::bench {

namespace {

struct Attention : torch::nn::Module {
  Attention(int64_t hidden, int64_t heads_) : heads(heads_) {
    in_weight = register_parameter("in_proj_weight", torch::empty({3 * hidden, hidden}));
    in_bias = register_parameter("in_proj_bias", torch::empty({3 * hidden}));
    out = register_module("out_proj", torch::nn::Linear(hidden, hidden));
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), hidden = x.size(2);
    // [B, T, 3·hidden] → three of [B, heads, T, hidden / heads]
    const auto qkv = torch::linear(x, in_weight, in_bias)
                         .view({batch, length, 3, heads, hidden / heads})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
    const at::Tensor y = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
    return torch::linear(y.transpose(1, 2).reshape({batch, length, hidden}), out->weight, out->bias);
  }
  int64_t heads;
  at::Tensor in_weight, in_bias;
  torch::nn::Linear out{nullptr};
};

struct Layer : torch::nn::Module {
  explicit Layer(const EncoderOptions& o) {
    self_attn = register_module("self_attn", std::make_shared<Attention>(o.hidden, o.heads));
    linear1 = register_module("linear1", torch::nn::Linear(o.hidden, o.feed_forward));
    linear2 = register_module("linear2", torch::nn::Linear(o.feed_forward, o.hidden));
    norm1 = register_module("norm1", torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}));
    norm2 = register_module("norm2", torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = norm1->forward(input + self_attn->forward(input));
    const at::Tensor inner = torch::relu(torch::linear(x, linear1->weight, linear1->bias));
    return norm2->forward(x + torch::linear(inner, linear2->weight, linear2->bias));
  }
  std::shared_ptr<Attention> self_attn;
  torch::nn::Linear linear1{nullptr}, linear2{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
};

struct Encoder : torch::nn::Module {
  explicit Encoder(const EncoderOptions& o) {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.layers; ++i) layers->push_back(std::make_shared<Layer>(o));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers{nullptr};
};

struct LibtorchEncoder : torch::nn::Module {
  explicit LibtorchEncoder(const EncoderOptions& o) {
    const torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(o.hidden, o.heads).dim_feedforward(o.feed_forward).dropout(0));
    net = register_module("net", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, o.layers)));
  }
  at::Tensor forward(const at::Tensor& x) { return net->forward(x.transpose(0, 1)).transpose(0, 1); }
  torch::nn::TransformerEncoder net{nullptr};
};

}  // namespace

Model encoder(const EncoderOptions& options) {
  return Model::of(std::make_shared<Encoder>(options), "encoder");
}

Model libtorch_encoder(const EncoderOptions& options) {
  return Model::of(std::make_shared<LibtorchEncoder>(options), "libtorch encoder");
}

}  // namespace bellows::bench
