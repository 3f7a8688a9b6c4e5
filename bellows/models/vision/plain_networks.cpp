#include "bellows/models/layers_impl.h"
#include "bellows/models/vision/alexnet.h"
#include "bellows/models/vision/vgg.h"

namespace bellows::models {

namespace {

namespace nn = torch::nn;

/// Convolutions with max pools in between, an average pool, and linear layers: AlexNet and the VGG networks. A block
/// consists of the layers up to a max pool.
class PlainNetwork final : public nn::Module, public layers::Blocks {
 public:
  PlainNetwork(std::string name, const nn::Sequential& features, const nn::Sequential& classifier, int64_t in_channels,
               int64_t least, int64_t pooled)
      : nn::Module(name), name_(std::move(name)), in_channels_(in_channels), least_(least), pooled_(pooled) {
    features_ = register_module("features", features);
    classifier_ = register_module("classifier", classifier);
    for (const auto& layer : *features) blocks_ += layer.ptr()->as<nn::MaxPool2d>() != nullptr;
  }

  at::Tensor forward(const at::Tensor& x) {
    layers::check_images(name_, x, in_channels_, least_);
    at::Tensor y = x;
    for (size_t begin = 0; begin < features_->size();) {
      const size_t end = end_of_block(begin);
      y = run([this, begin, end](const at::Tensor& z) { return run_layers(z, begin, end); }, y);
      begin = end;
    }
    y = at::adaptive_avg_pool2d(y, {pooled_, pooled_});
    return classifier_->forward(at::flatten(y, 1));
  }

  int64_t block_count() const override { return blocks_; }

 private:
  size_t end_of_block(size_t begin) const {
    size_t end = begin;
    while (end < features_->size() && !features_->ptr(end)->as<nn::MaxPool2d>()) ++end;
    return std::min(end + 1, features_->size());
  }

  at::Tensor run_layers(at::Tensor x, size_t begin, size_t end) {
    for (auto layer = features_->begin() + static_cast<ptrdiff_t>(begin);
         layer != features_->begin() + static_cast<ptrdiff_t>(end); ++layer)
      x = layer->forward<at::Tensor>(x);
    return x;
  }

  std::string name_;
  int64_t in_channels_, least_, pooled_, blocks_ = 0;
  nn::Sequential features_{nullptr}, classifier_{nullptr};
};

nn::ReLU relu_in_place() {
  return nn::ReLU(nn::ReLUOptions(true));
}

template <class Layer>
void add_with_relu(nn::Sequential& sequence, const Layer& layer) {
  sequence->push_back(layer);
  sequence->push_back(relu_in_place());
}

constexpr int64_t pool = 0;  // in the lists below; other numbers are output channels of convolutions
const std::vector<int64_t> vgg11_layers = {64, pool, 128, pool, 256, 256, pool, 512, 512, pool, 512, 512, pool};
const std::vector<int64_t> vgg13_layers = {64,   64,  pool, 128,  128, pool, 256, 256,
                                           pool, 512, 512,  pool, 512, 512,  pool};
const std::vector<int64_t> vgg16_layers = {64,   64,  pool, 128, 128,  pool, 256, 256, 256,
                                           pool, 512, 512,  512, pool, 512,  512, 512, pool};
const std::vector<int64_t> vgg19_layers = {64,  64,  pool, 128, 128,  pool, 256, 256, 256, 256, pool,
                                           512, 512, 512,  512, pool, 512,  512, 512, 512, pool};

nn::Sequential vgg_features(const std::vector<int64_t>& outputs, bool batch_norm, int64_t channels) {
  nn::Sequential features;
  for (const int64_t out : outputs) {
    if (out == pool) {
      features->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2).stride(2)));
      continue;
    }
    const nn::Conv2d conv(nn::Conv2dOptions(channels, out, 3).padding(1));
    features->push_back(conv);
    if (batch_norm) features->push_back(nn::BatchNorm2d(out));
    features->push_back(relu_in_place());
    channels = out;
  }
  return features;
}

/// Replaces the initial values of the constructors in torchvision's order.
void init_vgg(nn::Module& module) {
  for (const auto& layer : module.modules(/*include_self=*/false)) {
    if (auto* conv = layer->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
      nn::init::zeros_(conv->bias);
    } else if (auto* linear = layer->as<nn::Linear>()) {
      nn::init::normal_(linear->weight, 0, 0.01);
      nn::init::zeros_(linear->bias);
    }
  }
}

template <class Options>
void check_plain_options(const std::string& name, const Options& o) {
  layers::check_network(name, {{"num_classes", o.num_classes}, {"in_channels", o.in_channels}, {"hidden", o.hidden}},
                        {o.dropout});
}

Model make_vgg(const std::string& name, const std::vector<int64_t>& outputs, const VggOptions& o) {
  check_plain_options(name, o);
  const nn::Sequential features = vgg_features(outputs, name.ends_with("_bn"), o.in_channels);
  nn::Sequential classifier;
  add_with_relu(classifier, nn::Linear(512 * 7 * 7, o.hidden));
  classifier->push_back(nn::Dropout(o.dropout));
  add_with_relu(classifier, nn::Linear(o.hidden, o.hidden));
  classifier->push_back(nn::Dropout(o.dropout));
  classifier->push_back(nn::Linear(o.hidden, o.num_classes));
  auto module = std::make_shared<PlainNetwork>(name, features, classifier, o.in_channels, 32, 7);
  init_vgg(*module);
  return Model::of(module, name);
}

}  // namespace

Model vgg11(const VggOptions& options) {
  return make_vgg("vgg11", vgg11_layers, options);
}
Model vgg13(const VggOptions& options) {
  return make_vgg("vgg13", vgg13_layers, options);
}
Model vgg16(const VggOptions& options) {
  return make_vgg("vgg16", vgg16_layers, options);
}
Model vgg19(const VggOptions& options) {
  return make_vgg("vgg19", vgg19_layers, options);
}
Model vgg11_bn(const VggOptions& options) {
  return make_vgg("vgg11_bn", vgg11_layers, options);
}
Model vgg13_bn(const VggOptions& options) {
  return make_vgg("vgg13_bn", vgg13_layers, options);
}
Model vgg16_bn(const VggOptions& options) {
  return make_vgg("vgg16_bn", vgg16_layers, options);
}
Model vgg19_bn(const VggOptions& options) {
  return make_vgg("vgg19_bn", vgg19_layers, options);
}

Model alexnet(const AlexNetOptions& o) {
  check_plain_options("alexnet", o);
  using nn::Conv2dOptions;
  const auto max_pool = [] { return nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2)); };
  nn::Sequential features;
  add_with_relu(features, nn::Conv2d(Conv2dOptions(o.in_channels, 64, 11).stride(4).padding(2)));
  features->push_back(max_pool());
  add_with_relu(features, nn::Conv2d(Conv2dOptions(64, 192, 5).padding(2)));
  features->push_back(max_pool());
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{192, 384}, {384, 256}, {256, 256}}) {
    add_with_relu(features, nn::Conv2d(Conv2dOptions(in, out, 3).padding(1)));
  }
  features->push_back(max_pool());
  nn::Sequential classifier;
  classifier->push_back(nn::Dropout(o.dropout));
  add_with_relu(classifier, nn::Linear(256 * 6 * 6, o.hidden));
  classifier->push_back(nn::Dropout(o.dropout));
  add_with_relu(classifier, nn::Linear(o.hidden, o.hidden));
  classifier->push_back(nn::Linear(o.hidden, o.num_classes));
  return Model::of(std::make_shared<PlainNetwork>("alexnet", features, classifier, o.in_channels, 63, 6), "alexnet");
}

}  // namespace bellows::models
