#include "bellows/models/vision/googlenet.h"

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

namespace nn = torch::nn;
using layers::basic_conv;

class GoogLeNetBlock final : public layers::InceptionBlock {
 public:
  /// Output channels of the branches, and of the 1×1 convolutions before the 3×3 and 5×5 convolutions.
  struct Widths {
    int64_t ch1x1, ch3x3red, ch3x3, ch5x5red, ch5x5, pool_proj;
  };

  GoogLeNetBlock(int64_t in, const Widths& w) {
    branch1_ = register_module("branch1", basic_conv(in, w.ch1x1, 1));
    branch2_ = register_module("branch2", two_convs(in, w.ch3x3red, w.ch3x3));
    branch3_ = register_module("branch3", two_convs(in, w.ch5x5red, w.ch5x5));
    nn::Sequential pool;
    pool->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(1).padding(1).ceil_mode(true)));
    pool->push_back(basic_conv(in, w.pool_proj, 1));
    branch4_ = register_module("branch4", pool);
  }

  at::Tensor forward(const at::Tensor& x) override {
    return at::cat({branch1_->forward(x), branch2_->forward(x), branch3_->forward(x), branch4_->forward(x)}, 1);
  }

 private:
  static nn::Sequential two_convs(int64_t in, int64_t reduced, int64_t out) {
    nn::Sequential convs;
    convs->push_back(basic_conv(in, reduced, 1));
    convs->push_back(basic_conv(reduced, out, 3, 1));
    return convs;
  }

  layers::Conv branch1_;
  nn::Sequential branch2_{nullptr}, branch3_{nullptr}, branch4_{nullptr};
};

class GoogLeNetAux final : public nn::Module {
 public:
  GoogLeNetAux(int64_t in, int64_t num_classes, double dropout) : nn::Module("InceptionAux"), rate_(dropout) {
    conv_ = register_module("conv", basic_conv(in, 128, 1));
    fc1_ = register_module("fc1", nn::Linear(2048, 1024));
    fc2_ = register_module("fc2", nn::Linear(1024, num_classes));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::flatten(conv_->forward(at::adaptive_avg_pool2d(x, {4, 4})), 1);
    return fc2_->forward(at::dropout(fc1_->forward(y).relu_(), rate_, is_training()));
  }

 private:
  double rate_;
  layers::Conv conv_;
  nn::Linear fc1_{nullptr}, fc2_{nullptr};
};

struct GoogLeNetRow {
  const char* name;
  GoogLeNetBlock::Widths widths;
};
const std::vector<GoogLeNetRow> googlenet_rows = {
    {"inception3a", {64, 96, 128, 16, 32, 32}},     {"inception3b", {128, 128, 192, 32, 96, 64}},
    {"inception4a", {192, 96, 208, 16, 48, 64}},    {"inception4b", {160, 112, 224, 24, 64, 64}},
    {"inception4c", {128, 128, 256, 24, 64, 64}},   {"inception4d", {112, 144, 288, 32, 64, 64}},
    {"inception4e", {256, 160, 320, 32, 128, 128}}, {"inception5a", {256, 160, 320, 32, 128, 128}},
    {"inception5b", {384, 192, 384, 48, 128, 128}}};

at::Tensor ceil_pool(const at::Tensor& x, int64_t kernel) {
  return at::max_pool2d(x, {kernel, kernel}, {2, 2}, {0, 0}, {1, 1}, /*ceil_mode=*/true);
}

class GoogLeNet final : public nn::Module, public layers::Blocks, public layers::WithAuxiliaryOutputs {
 public:
  explicit GoogLeNet(const GoogLeNetOptions& o) : nn::Module("GoogLeNet"), options_(o) {
    conv1_ = register_module("conv1", basic_conv(o.in_channels, 64, 7, 3, 2));
    conv2_ = register_module("conv2", basic_conv(64, 64, 1));
    conv3_ = register_module("conv3", basic_conv(64, 192, 3, 1));
    int64_t channels = 192;
    blocks_.reserve(googlenet_rows.size());
    for (const auto& [name, w] : googlenet_rows) {
      blocks_.push_back(register_module(name, std::make_shared<GoogLeNetBlock>(channels, w)));
      channels = w.ch1x1 + w.ch3x3 + w.ch5x5 + w.pool_proj;
    }
    if (o.aux_logits) {
      aux1_ = register_module("aux1", std::make_shared<GoogLeNetAux>(512, o.num_classes, o.dropout_aux));
      aux2_ = register_module("aux2", std::make_shared<GoogLeNetAux>(528, o.num_classes, o.dropout_aux));
    }
    fc_ = register_module("fc", nn::Linear(channels, o.num_classes));
    layers::init_truncated_normal(*this, [](const std::string&) { return 0.01; });
  }

  at::Tensor forward(const at::Tensor& x) { return forward_all(x).front(); }

  std::vector<at::Tensor> forward_all(const at::Tensor& x) override {
    layers::check_images("googlenet", x, options_.in_channels, 15);
    at::Tensor y = conv1_->forward(options_.transform_input ? layers::to_half_range(x) : x);
    y = ceil_pool(conv3_->forward(conv2_->forward(ceil_pool(y, 3))), 3);
    y = ceil_pool(run_rows(y, 0, 2), 3);
    y = run_rows(y, 2, 3);
    at::Tensor aux1, aux2;
    if (is_training() && aux1_) aux1 = aux1_->forward(y);
    y = run_rows(y, 3, 6);
    if (is_training() && aux2_) aux2 = aux2_->forward(y);
    y = run_rows(ceil_pool(run_rows(y, 6, 7), 2), 7, 9);
    y = at::dropout(at::flatten(at::adaptive_avg_pool2d(y, {1, 1}), 1), options_.dropout, is_training());
    std::vector<at::Tensor> outputs = {fc_->forward(y)};
    if (aux1.defined()) outputs.insert(outputs.end(), {aux2, aux1});
    return outputs;
  }

  std::vector<std::string> output_names() const override {
    if (!options_.aux_logits) return {"logits"};
    return {"logits", "aux_logits2", "aux_logits1"};
  }
  bool has_auxiliary_outputs() const override { return options_.aux_logits; }
  double auxiliary_weight() const override { return 0.3; }
  int64_t block_count() const override { return static_cast<int64_t>(blocks_.size()); }

 private:
  at::Tensor run_rows(at::Tensor x, size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i)
      x = run([block = blocks_[i]](const at::Tensor& y) { return block->forward(y); }, x);
    return x;
  }

  GoogLeNetOptions options_;
  layers::Conv conv1_, conv2_, conv3_;
  layers::InceptionBlocks blocks_;
  std::shared_ptr<GoogLeNetAux> aux1_, aux2_;
  nn::Linear fc_{nullptr};
};

}  // namespace

Model googlenet(const GoogLeNetOptions& o) {
  layers::check_network("googlenet", {{"num_classes", o.num_classes}, {"in_channels", o.in_channels}},
                        {o.dropout, o.dropout_aux});
  layers::check_transform("googlenet", o.transform_input, o.in_channels);
  return layers::model_with_auxiliary(std::make_shared<GoogLeNet>(o), "googlenet");
}

}  // namespace bellows::models
