#include "bellows/models/vision/inception_v2.h"

#include "bellows/models/layers_impl.h"

namespace bellows::models {

namespace {

namespace nn = torch::nn;
using layers::basic_conv;

/// A row of the paper's table. Blocks with stride 2 have no 1×1 branch and no projection after the pool.
struct InceptionV2Row {
  const char* name;
  int64_t ch1x1, ch3x3red, ch3x3, double3x3red, double3x3;
  bool max_pool;
  int64_t pool_proj;

  int64_t stride() const { return ch1x1 == 0 ? 2 : 1; }
  int64_t outputs(int64_t in) const { return ch1x1 + ch3x3 + double3x3 + (stride() == 2 ? in : pool_proj); }
};
const std::vector<InceptionV2Row> inception_v2_rows = {
    {"inception3a", 64, 64, 64, 64, 96, false, 32},       {"inception3b", 64, 64, 96, 64, 96, false, 64},
    {"inception3c", 0, 128, 160, 64, 96, true, 0},        {"inception4a", 224, 64, 96, 96, 128, false, 128},
    {"inception4b", 192, 96, 128, 96, 128, false, 128},   {"inception4c", 160, 128, 160, 128, 160, false, 96},
    {"inception4d", 96, 128, 192, 160, 192, false, 96},   {"inception4e", 0, 128, 192, 192, 256, true, 0},
    {"inception5a", 352, 192, 320, 160, 224, false, 128}, {"inception5b", 352, 192, 320, 192, 224, true, 128}};

class InceptionV2Block final : public layers::InceptionBlock {
 public:
  InceptionV2Block(int64_t in, const InceptionV2Row& row) {
    const int64_t stride = row.stride();
    if (stride == 1) add("branch1", {basic_conv(in, row.ch1x1, 1)}, /*in_sequence=*/false);
    layers::Conv reduce = basic_conv(in, row.ch3x3red, 1);
    add("branch2", {reduce, basic_conv(row.ch3x3red, row.ch3x3, 3, 1, stride)});
    reduce = basic_conv(in, row.double3x3red, 1);
    const layers::Conv first = basic_conv(row.double3x3red, row.double3x3, 3, 1);
    add("branch3", {reduce, first, basic_conv(row.double3x3, row.double3x3, 3, 1, stride)});
    nn::Sequential pool;
    if (row.max_pool) pool->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(stride).padding(1)));
    if (!row.max_pool) pool->push_back(nn::AvgPool2d(nn::AvgPool2dOptions(3).stride(stride).padding(1)));
    if (stride == 1) pool->push_back(basic_conv(in, row.pool_proj, 1));
    register_module("branch4", pool);
    branches_.push_back([pool](const at::Tensor& x) mutable { return pool->forward(x); });
  }

  at::Tensor forward(const at::Tensor& x) override {
    std::vector<at::Tensor> outputs;
    outputs.reserve(branches_.size());
    for (const auto& branch : branches_) outputs.push_back(branch(x));
    return at::cat(outputs, 1);
  }

 private:
  void add(const char* name, const std::vector<layers::Conv>& convs, bool in_sequence = true) {
    if (in_sequence) {
      nn::Sequential sequence;
      for (const layers::Conv& conv : convs) sequence->push_back(conv);
      register_module(name, sequence);
    } else {
      register_module(name, convs.front());
    }
    branches_.emplace_back([convs](at::Tensor x) {
      for (const layers::Conv& conv : convs) x = conv->forward(x);
      return x;
    });
  }

  std::vector<Block> branches_;
};

class InceptionV2 final : public nn::Module, public layers::Blocks {
 public:
  explicit InceptionV2(const InceptionV2Options& o) : nn::Module("InceptionV2"), options_(o) {
    conv1_ = register_module("conv1", basic_conv(o.in_channels, 64, 7, 3, 2));
    conv2_ = register_module("conv2", basic_conv(64, 64, 1));
    conv3_ = register_module("conv3", basic_conv(64, 192, 3, 1));
    int64_t channels = 192;
    blocks_.reserve(inception_v2_rows.size());
    for (const InceptionV2Row& row : inception_v2_rows) {
      blocks_.push_back(register_module(row.name, std::make_shared<InceptionV2Block>(channels, row)));
      channels = row.outputs(channels);
    }
    fc_ = register_module("fc", nn::Linear(channels, o.num_classes));
    layers::init_truncated_normal(*this, [](const std::string&) { return 0.01; });
  }

  at::Tensor forward(const at::Tensor& x) {
    layers::check_images("inception_v2", x, options_.in_channels, 32);
    at::Tensor y = at::max_pool2d(conv1_->forward(x), {3, 3}, {2, 2}, {1, 1});
    y = at::max_pool2d(conv3_->forward(conv2_->forward(y)), {3, 3}, {2, 2}, {1, 1});
    for (const auto& block : blocks_) y = run([block](const at::Tensor& z) { return block->forward(z); }, y);
    y = at::flatten(at::adaptive_avg_pool2d(y, {1, 1}), 1);
    return fc_->forward(at::dropout(y, options_.dropout, is_training()));
  }

  int64_t block_count() const override { return static_cast<int64_t>(blocks_.size()); }

 private:
  InceptionV2Options options_;
  layers::Conv conv1_, conv2_, conv3_;
  layers::InceptionBlocks blocks_;
  nn::Linear fc_{nullptr};
};

}  // namespace

Model inception_v2(const InceptionV2Options& o) {
  layers::check_network("inception_v2", {{"num_classes", o.num_classes}, {"in_channels", o.in_channels}}, {o.dropout});
  return Model::of(std::make_shared<InceptionV2>(o), "inception_v2");
}

}  // namespace bellows::models
