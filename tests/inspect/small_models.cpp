#include "small_models.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace bellows::test {

namespace {

class TensorsOnly : public Model::Impl {
 public:
  explicit TensorsOnly(NamedTensors tensors) : tensors_(std::move(tensors)) {}
  at::Tensor forward(const at::Tensor& input) override { return input; }
  NamedTensors named_parameters() const override { return tensors_; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return true; }
  void to(c10::Device) override {}

 protected:
  NamedTensors tensors_;
};

class SmallEncoder final : public TensorsOnly {
 public:
  SmallEncoder() : TensorsOnly({}) {
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      for (const char* name : {"attention.q", "attention.k", "attention.v", "attention.out"})
        add(layer + name, {32, 32});
      add(layer + "norm", {32});
      add(layer + "up", {64, 32});
      add(layer + "down", {32, 64});
    }
  }

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      x = at::layer_norm(x + attention(layer + "attention.", x), {32}, get(layer + "norm.weight"),
                         get(layer + "norm.bias"));
      x = x + linear(layer + "down", at::relu(linear(layer + "up", x)));
    }
    return x;
  }

 private:
  void add(const std::string& module, at::IntArrayRef sizes) {
    tensors_.emplace_back(module + ".weight", (at::ones(sizes) * 0.1).requires_grad_());
    tensors_.emplace_back(module + ".bias", at::zeros({sizes[0]}).requires_grad_());
  }
  at::Tensor get(const std::string& name) const {
    for (const auto& [key, tensor] : tensors_) {
      if (key == name) return tensor;
    }
    return {};
  }
  at::Tensor linear(const std::string& module, const at::Tensor& x) const {
    return at::linear(x, get(module + ".weight"), get(module + ".bias"));
  }
  at::Tensor attention(const std::string& module, const at::Tensor& x_BTC) const {
    const int64_t batch = x_BTC.size(0), length = x_BTC.size(1);
    const auto heads = [&](const char* name) {
      return linear(module + name, x_BTC).view({batch, length, 4, 8}).transpose(1, 2);
    };
    const at::Tensor q = heads("q"), k = heads("k"), v = heads("v");
    const at::Tensor scores = at::softmax(at::matmul(q, k.transpose(-2, -1)), -1);
    return linear(module + "out", at::matmul(scores, v).transpose(1, 2).reshape({batch, length, 32}));
  }
};

}  // namespace

Model model_of(NamedTensors tensors) {
  return Model("tensors", std::make_shared<TensorsOnly>(std::move(tensors)));
}

Model small_encoder() {
  return Model("encoder", std::make_shared<SmallEncoder>());
}

}  // namespace bellows::test
