#include "bellows/models/vision/inception_v3.h"

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

namespace nn = torch::nn;
using layers::basic_conv;
using layers::Conv;

/// A convolution of height × width whose output has the size of its input.
Conv same_conv(int64_t in, int64_t out, int64_t height, int64_t width) {
  return std::make_shared<layers::BasicConv>(
      nn::Conv2dOptions(in, out, {height, width}).padding({height / 2, width / 2}));
}

at::Tensor average_3x3(const at::Tensor& x) {
  return at::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1});
}

at::Tensor half_max_pool(const at::Tensor& x) {
  return at::max_pool2d(x, {3, 3}, {2, 2});
}

/// Base class of the blocks: convolutions with torchvision's names, which the branches call in a row.
class InceptionV3Block : public layers::InceptionBlock {
 protected:
  Conv add(const std::string& name, const Conv& conv) { return register_module(name, conv); }
  static at::Tensor in_a_row(at::Tensor x, std::initializer_list<Conv> convs) {
    for (const Conv& conv : convs) x = conv->forward(x);
    return x;
  }
};

class InceptionA final : public InceptionV3Block {
 public:
  InceptionA(int64_t in, int64_t pool_features) {
    branch1x1 = add("branch1x1", basic_conv(in, 64, 1));
    branch5x5_1 = add("branch5x5_1", basic_conv(in, 48, 1));
    branch5x5_2 = add("branch5x5_2", basic_conv(48, 64, 5, 2));
    branch3x3dbl_1 = add("branch3x3dbl_1", basic_conv(in, 64, 1));
    branch3x3dbl_2 = add("branch3x3dbl_2", basic_conv(64, 96, 3, 1));
    branch3x3dbl_3 = add("branch3x3dbl_3", basic_conv(96, 96, 3, 1));
    branch_pool = add("branch_pool", basic_conv(in, pool_features, 1));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return at::cat(
        {branch1x1->forward(x), in_a_row(x, {branch5x5_1, branch5x5_2}),
         in_a_row(x, {branch3x3dbl_1, branch3x3dbl_2, branch3x3dbl_3}), branch_pool->forward(average_3x3(x))},
        1);
  }

 private:
  Conv branch1x1, branch5x5_1, branch5x5_2, branch3x3dbl_1, branch3x3dbl_2, branch3x3dbl_3, branch_pool;
};

class InceptionB final : public InceptionV3Block {
 public:
  explicit InceptionB(int64_t in) {
    branch3x3 = add("branch3x3", basic_conv(in, 384, 3, 0, 2));
    branch3x3dbl_1 = add("branch3x3dbl_1", basic_conv(in, 64, 1));
    branch3x3dbl_2 = add("branch3x3dbl_2", basic_conv(64, 96, 3, 1));
    branch3x3dbl_3 = add("branch3x3dbl_3", basic_conv(96, 96, 3, 0, 2));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return at::cat(
        {branch3x3->forward(x), in_a_row(x, {branch3x3dbl_1, branch3x3dbl_2, branch3x3dbl_3}), half_max_pool(x)}, 1);
  }

 private:
  Conv branch3x3, branch3x3dbl_1, branch3x3dbl_2, branch3x3dbl_3;
};

class InceptionC final : public InceptionV3Block {
 public:
  InceptionC(int64_t in, int64_t width) {
    branch1x1 = add("branch1x1", basic_conv(in, 192, 1));
    branch7x7_1 = add("branch7x7_1", basic_conv(in, width, 1));
    branch7x7_2 = add("branch7x7_2", same_conv(width, width, 1, 7));
    branch7x7_3 = add("branch7x7_3", same_conv(width, 192, 7, 1));
    branch7x7dbl_1 = add("branch7x7dbl_1", basic_conv(in, width, 1));
    branch7x7dbl_2 = add("branch7x7dbl_2", same_conv(width, width, 7, 1));
    branch7x7dbl_3 = add("branch7x7dbl_3", same_conv(width, width, 1, 7));
    branch7x7dbl_4 = add("branch7x7dbl_4", same_conv(width, width, 7, 1));
    branch7x7dbl_5 = add("branch7x7dbl_5", same_conv(width, 192, 1, 7));
    branch_pool = add("branch_pool", basic_conv(in, 192, 1));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return at::cat({branch1x1->forward(x), in_a_row(x, {branch7x7_1, branch7x7_2, branch7x7_3}),
                    in_a_row(x, {branch7x7dbl_1, branch7x7dbl_2, branch7x7dbl_3, branch7x7dbl_4, branch7x7dbl_5}),
                    branch_pool->forward(average_3x3(x))},
                   1);
  }

 private:
  Conv branch1x1, branch7x7_1, branch7x7_2, branch7x7_3, branch7x7dbl_1, branch7x7dbl_2, branch7x7dbl_3, branch7x7dbl_4,
      branch7x7dbl_5, branch_pool;
};

class InceptionD final : public InceptionV3Block {
 public:
  explicit InceptionD(int64_t in) {
    branch3x3_1 = add("branch3x3_1", basic_conv(in, 192, 1));
    branch3x3_2 = add("branch3x3_2", basic_conv(192, 320, 3, 0, 2));
    branch7x7x3_1 = add("branch7x7x3_1", basic_conv(in, 192, 1));
    branch7x7x3_2 = add("branch7x7x3_2", same_conv(192, 192, 1, 7));
    branch7x7x3_3 = add("branch7x7x3_3", same_conv(192, 192, 7, 1));
    branch7x7x3_4 = add("branch7x7x3_4", basic_conv(192, 192, 3, 0, 2));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return at::cat({in_a_row(x, {branch3x3_1, branch3x3_2}),
                    in_a_row(x, {branch7x7x3_1, branch7x7x3_2, branch7x7x3_3, branch7x7x3_4}), half_max_pool(x)},
                   1);
  }

 private:
  Conv branch3x3_1, branch3x3_2, branch7x7x3_1, branch7x7x3_2, branch7x7x3_3, branch7x7x3_4;
};

class InceptionE final : public InceptionV3Block {
 public:
  explicit InceptionE(int64_t in) {
    branch1x1 = add("branch1x1", basic_conv(in, 320, 1));
    branch3x3_1 = add("branch3x3_1", basic_conv(in, 384, 1));
    branch3x3_2a = add("branch3x3_2a", same_conv(384, 384, 1, 3));
    branch3x3_2b = add("branch3x3_2b", same_conv(384, 384, 3, 1));
    branch3x3dbl_1 = add("branch3x3dbl_1", basic_conv(in, 448, 1));
    branch3x3dbl_2 = add("branch3x3dbl_2", basic_conv(448, 384, 3, 1));
    branch3x3dbl_3a = add("branch3x3dbl_3a", same_conv(384, 384, 1, 3));
    branch3x3dbl_3b = add("branch3x3dbl_3b", same_conv(384, 384, 3, 1));
    branch_pool = add("branch_pool", basic_conv(in, 192, 1));
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor y = branch3x3_1->forward(x), z = in_a_row(x, {branch3x3dbl_1, branch3x3dbl_2});
    return at::cat({branch1x1->forward(x), branch3x3_2a->forward(y), branch3x3_2b->forward(y),
                    branch3x3dbl_3a->forward(z), branch3x3dbl_3b->forward(z), branch_pool->forward(average_3x3(x))},
                   1);
  }

 private:
  Conv branch1x1, branch3x3_1, branch3x3_2a, branch3x3_2b, branch3x3dbl_1, branch3x3dbl_2, branch3x3dbl_3a,
      branch3x3dbl_3b, branch_pool;
};

class InceptionV3Aux final : public nn::Module {
 public:
  InceptionV3Aux(int64_t in, int64_t num_classes) : nn::Module("InceptionAux") {
    conv0_ = register_module("conv0", basic_conv(in, 128, 1));
    conv1_ = register_module("conv1", basic_conv(128, 768, 5));
    fc_ = register_module("fc", nn::Linear(768, num_classes));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = conv1_->forward(conv0_->forward(at::avg_pool2d(x, {5, 5}, {3, 3})));
    return fc_->forward(at::flatten(at::adaptive_avg_pool2d(y, {1, 1}), 1));
  }

 private:
  Conv conv0_, conv1_;
  nn::Linear fc_{nullptr};
};

/// The standard deviation of the initial weights of a layer. torchvision sets another one for AuxLogits.conv1, too, but
/// on the module around its convolution, where it has no effect.
double inception_v3_deviation(const std::string& name) {
  return name == "AuxLogits.fc" ? 0.001 : 0.1;
}

class InceptionV3 final : public nn::Module, public layers::Blocks, public layers::WithAuxiliaryOutputs {
 public:
  explicit InceptionV3(const InceptionV3Options& o) : nn::Module("Inception3"), options_(o) {
    conv_1a_ = register_module("Conv2d_1a_3x3", basic_conv(o.in_channels, 32, 3, 0, 2));
    conv_2a_ = register_module("Conv2d_2a_3x3", basic_conv(32, 32, 3));
    conv_2b_ = register_module("Conv2d_2b_3x3", basic_conv(32, 64, 3, 1));
    conv_3b_ = register_module("Conv2d_3b_1x1", basic_conv(64, 80, 1));
    conv_4a_ = register_module("Conv2d_4a_3x3", basic_conv(80, 192, 3));
    add<InceptionA>("Mixed_5b", 192, 32);
    add<InceptionA>("Mixed_5c", 256, 64);
    add<InceptionA>("Mixed_5d", 288, 64);
    add<InceptionB>("Mixed_6a", 288);
    add<InceptionC>("Mixed_6b", 768, 128);
    add<InceptionC>("Mixed_6c", 768, 160);
    add<InceptionC>("Mixed_6d", 768, 160);
    add<InceptionC>("Mixed_6e", 768, 192);
    before_aux_ = blocks_.size();
    if (o.aux_logits) aux_ = register_module("AuxLogits", std::make_shared<InceptionV3Aux>(768, o.num_classes));
    add<InceptionD>("Mixed_7a", 768);
    add<InceptionE>("Mixed_7b", 1280);
    add<InceptionE>("Mixed_7c", 2048);
    fc_ = register_module("fc", nn::Linear(2048, o.num_classes));
    layers::init_truncated_normal(*this, inception_v3_deviation);
  }

  at::Tensor forward(const at::Tensor& x) { return forward_all(x).front(); }

  std::vector<at::Tensor> forward_all(const at::Tensor& x) override {
    const bool with_aux = is_training() && aux_;
    check(x, with_aux);
    at::Tensor y = conv_1a_->forward(options_.transform_input ? layers::to_half_range(x) : x);
    y = half_max_pool(conv_2b_->forward(conv_2a_->forward(y)));
    y = half_max_pool(conv_4a_->forward(conv_3b_->forward(y)));
    std::vector<at::Tensor> outputs(1);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i == before_aux_ && with_aux) outputs.push_back(aux_->forward(y));
      y = run([block = blocks_[i]](const at::Tensor& z) { return block->forward(z); }, y);
    }
    y = at::dropout(at::adaptive_avg_pool2d(y, {1, 1}), options_.dropout, is_training());
    outputs.front() = fc_->forward(at::flatten(y, 1));
    return outputs;
  }

  std::vector<std::string> output_names() const override {
    if (!options_.aux_logits) return {"logits"};
    return {"logits", "aux_logits"};
  }
  bool has_auxiliary_outputs() const override { return options_.aux_logits; }
  double auxiliary_weight() const override { return 0.4; }
  int64_t block_count() const override { return static_cast<int64_t>(blocks_.size()); }

 private:
  template <class AnyBlock, class... Args>
  void add(const char* name, Args... args) {
    blocks_.push_back(register_module(name, std::make_shared<AnyBlock>(args...)));
  }

  void check(const at::Tensor& x, bool with_aux) const {
    layers::check_images(with_aux ? "inception_v3, training with its auxiliary output" : "inception_v3", x,
                         options_.in_channels, with_aux ? 299 : 75);
    if (!with_aux) return;
    TORCH_CHECK_VALUE(
        x.size(0) >= 2,
        "inception_v3: training with the auxiliary output needs at least two images in a batch, because a "
        "batch norm cannot normalize a single value, got ",
        x.sizes(),
        ". Choose a batch size that leaves no single image for the last batch, or "
        "create the model with aux_logits = false.");
  }

  InceptionV3Options options_;
  Conv conv_1a_, conv_2a_, conv_2b_, conv_3b_, conv_4a_;
  layers::InceptionBlocks blocks_;
  size_t before_aux_ = 0;
  std::shared_ptr<InceptionV3Aux> aux_;
  nn::Linear fc_{nullptr};
};

}  // namespace

Model inception_v3(const InceptionV3Options& o) {
  layers::check_network("inception_v3", {{"num_classes", o.num_classes}, {"in_channels", o.in_channels}}, {o.dropout});
  layers::check_transform("inception_v3", o.transform_input, o.in_channels);
  return layers::model_with_auxiliary(std::make_shared<InceptionV3>(o), "inception_v3");
}

}  // namespace bellows::models
