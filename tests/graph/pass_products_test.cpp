#include "bellows/models/resnet.h"
#include "tests/graph/pass_support.h"
#include "tests/graph/training.h"

namespace bellows::graph::testing {
namespace {

/// Forward passes of a module whose tensors keep their values, plainly and through passes.
std::shared_ptr<PassBackend> expect_frozen(const std::shared_ptr<nn::Module>& module,
                                           const std::function<at::Tensor(const at::Tensor&)>& forward,
                                           const at::Tensor& x, double tolerance, PassOptions options = {},
                                           bool inference = false) {
  module->eval();
  const auto backend = std::make_shared<PassBackend>(std::move(options));
  backend->frozen = module->parameters();
  for (const auto& tensor : module->buffers()) backend->frozen.push_back(tensor);
  RegionOptions region_options;
  region_options.backend = backend;
  Region region(region_options);
  const c10::InferenceMode mode(inference);
  const at::NoGradGuard no_grad;
  for (int call = 0; call < 4; ++call) {
    const at::Tensor input = x * (1 + 0.1 * call), plain = forward(input);
    at::Tensor passed;
    region.run([&] { passed = forward(input); });
    EXPECT_TRUE(tolerance == 0 ? same_bits(plain, passed) : at::allclose(plain, passed, tolerance, tolerance))
        << (plain - passed).abs().max() << "\n"
        << backend->programs.back().to_text();
  }
  return backend;
}

void warm_up(nn::Sequential& net, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.uniform_(-0.5, 0.5);
  net->train();
  for (int i = 0; i < 3; ++i) net->forward(x * (i + 1));
}

TEST(BatchNormFolding, IntoConvolutionsAndLinears) {
  for (const bool bias : {false, true}) {
    auto net = nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 4, 3).bias(bias)), nn::BatchNorm2d(4), nn::ReLU(),
                              nn::Flatten(), nn::Linear(nn::LinearOptions(4 * 36, 6).bias(bias)), nn::BatchNorm1d(6));
    const at::Tensor x = torch::randn({4, 3, 8, 8});
    warm_up(net, x);
    const auto backend = expect_frozen(
        net.ptr(), [&](const at::Tensor& input) { return net->forward(input); }, x, 1e-4);
    EXPECT_EQ(backend->reports.back().fired("batch norm"), bias ? 2 : 1) << "mm has no place for a bias";
    const auto exact =
        expect_frozen(net.ptr(), [&](const at::Tensor& input) { return net->forward(input); }, x, 0, {.exact = true});
    EXPECT_EQ(exact->reports.back().fired("batch norm"), 0);
  }
}

/// What arrives whole in inference mode.
at::Tensor composites(const at::Tensor& x, const nn::BatchNorm2d& norm) {
  const at::Tensor w = norm->weight.view({4, 1, 1, 1}).expand({4, 4, 1, 1}).contiguous();
  at::Tensor y = nn::BatchNorm2d(norm)->forward(at::conv2d(x, w, norm->bias, 2, 1)).relu();
  y = at::conv_transpose2d(at::max_pool2d(y, 2), w, {}, 2, 0, 1);
  const at::Tensor line = at::conv1d(y.flatten(2), w.squeeze(-1)), cube = at::conv3d(y.unsqueeze(2), w.unsqueeze(-1));
  return at::softmax(at::adaptive_avg_pool2d(y, {1, 1}).flatten(1).to(at::kDouble), 1) + line.sum().to(at::kDouble) +
         at::log_softmax(cube.flatten(1), 1).sum();
}

TEST(Composites, AreSaidByTheirParts) {
  const nn::BatchNorm2d norm(4);
  norm->running_mean.uniform_(-1, 1);
  const auto forward = [=](const at::Tensor& input) { return composites(input, norm); };
  const auto exact = expect_frozen(norm.ptr(), forward, torch::randn({2, 4, 9, 9}), 0, {.exact = true}, true);
  EXPECT_GE(exact->reports.back().fired("composites"), 9) << exact->programs.back().to_text();
  EXPECT_EQ(exact->reports.back().fired("batch norm"), 0);
  const auto fast = expect_frozen(norm.ptr(), forward, torch::randn({2, 4, 9, 9}), 1e-4, {}, true);
  EXPECT_EQ(fast->reports.back().fired("batch norm"), 1) << fast->programs.back().to_text();
}

TEST(Composites, ConvolutionsOfTracesAreFolded) {
  const nn::BatchNorm2d norm(4);
  norm->running_mean.uniform_(-1, 1);
  const auto forward = [=](const at::Tensor& input) {
    const at::Tensor w = norm->weight.view({4, 1, 1, 1}).expand({4, 4, 1, 1}).contiguous();
    const at::Tensor y =
        at::_convolution(input, w, norm->bias, {2, 2}, {1, 1}, {1, 1}, false, {0, 0}, 1, false, false, true, true);
    return nn::BatchNorm2d(norm)->forward(y).relu();
  };
  const auto exact = expect_frozen(norm.ptr(), forward, torch::randn({2, 4, 9, 9}), 0, {.exact = true}, true);
  EXPECT_GE(exact->reports.back().fired("composites"), 1) << exact->programs.back().to_text();
  const auto fast = expect_frozen(norm.ptr(), forward, torch::randn({2, 4, 9, 9}), 1e-4, {}, true);
  EXPECT_EQ(fast->reports.back().fired("batch norm"), 1) << fast->programs.back().to_text();
}

TEST(Composites, OfOneSampleStay) {
  const nn::BatchNorm2d norm(4);
  const at::Tensor w = torch::randn({4, 4, 3, 3});
  const auto forward = [=](const at::Tensor& input) { return at::conv2d(input, w) * norm->weight[0]; };
  const auto backend = expect_frozen(norm.ptr(), forward, torch::randn({4, 9, 9}), 0, {}, true);
  EXPECT_EQ(backend->reports.back().fired("composites"), 0) << backend->programs.back().to_text();
}

TEST(BatchNormFolding, WeightsThatMayChangeStay) {
  const auto make = [] {
    auto net = nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 4, 3)), nn::BatchNorm2d(4));
    net->eval();
    const at::Tensor x = torch::randn({4, 3, 8, 8});
    return Program{[=](int) mutable -> Tensors {
      const at::NoGradGuard no_grad;
      net->parameters()[0].mul_(1.5);
      return {net->forward(x)};
    }};
  };
  const auto backend = expect_passed(make, PassBackend());
  EXPECT_EQ(backend->fired("batch norm"), 0);
  EXPECT_GT(backend->fired("evaluation"), 0);
}

struct ReadsTwice : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor before = convolution->forward(x);
    return before + norm->forward(before);
  }
  nn::Conv2d convolution = register_module("convolution", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(4));
};

TEST(BatchNormFolding, NotWhatSomebodyElseReads) {
  const auto net = std::make_shared<ReadsTwice>();
  const at::Tensor x = torch::randn({4, 3, 8, 8});
  const auto backend = expect_frozen(
      net, [&](const at::Tensor& input) { return net->forward(input); }, x, 1e-5);
  EXPECT_EQ(backend->reports.back().fired("batch norm"), 0);
}

TEST(BatchNormFolding, ResNet) {
  const Model model = models::resnet18({.num_classes = 10});
  const auto backend = expect_frozen(
      model.module(), [=](const at::Tensor& x) { return model.forward(x); }, torch::randn({2, 3, 32, 32}), 2e-3);
  EXPECT_EQ(backend->reports.back().fired("batch norm"), 20) << backend->to_text();
  for (const Instruction& one : backend->programs.back().instructions)
    EXPECT_EQ(one.op && one.op->name.find("batch_norm") != std::string::npos, false);
}

/// Attention as people write it, with its mask and its scale.
struct OwnAttention : nn::Module {
  OwnAttention() {
    for (const char* name : {"q", "k", "v", "out"}) parts.push_back(register_module(name, nn::Linear(24, 24)));
  }
  at::Tensor heads(int part, const at::Tensor& x) {
    return parts[part]->forward(x).view({x.size(0), x.size(1), 3, 8}).transpose(1, 2);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor q = heads(0, x), k = heads(1, x), v = heads(2, x);
    at::Tensor scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(8.0);
    if (mask.defined()) scores = scores + mask;
    const at::Tensor mixed = at::softmax(scores, -1).matmul(v);
    return parts[3]->forward(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), 24}));
  }
  std::vector<nn::Linear> parts;
};

void expect_one_attention(const at::Tensor& mask, bool inference) {
  const auto attention = std::make_shared<OwnAttention>();
  const at::Tensor x = torch::randn({2, 5, 24});
  const auto forward = [&](const at::Tensor& input) { return attention->forward(input, mask); };
  const auto passed = [&](double tolerance, const PassOptions& options) {
    const auto backend = expect_frozen(attention, forward, x, tolerance, options, inference);
    return std::pair(backend->reports.back().fired("attention"), backend->reports.back().fired("linears"));
  };
  EXPECT_EQ(passed(1e-4, {}), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(passed(1e-5, {.without = {"attention"}}), std::pair(int64_t{0}, int64_t{1}));
  EXPECT_EQ(passed(1e-4, {.without = {"attention", "linears"}}), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(passed(0, {.exact = true}), std::pair(int64_t{0}, int64_t{0}));
}

TEST(Attention, IsOneOperatorAndItsLinearsAreOneProduct) {
  for (const bool inference : {false, true}) {
    expect_one_attention({}, inference);
    expect_one_attention(torch::randn({2, 1, 1, 5}), inference);
    expect_one_attention(torch::randn({5, 5}), inference);
  }
}

// Its products are of three dims; the mean of its weights, which it always hands out, is looked at by nobody. In each layer it asks the host
// whether query and key are equal: what runs at once are parts of one layer and the next.
TEST(Attention, OfLibtorchIsOneOperatorInEachLayer) {
  const auto options = nn::TransformerEncoderLayerOptions(24, 3).dim_feedforward(32);
  auto net = nn::TransformerEncoder(nn::TransformerEncoderLayer(options), 2);
  for (const bool inference : {false, true}) {
    for (const at::Tensor& mask : {at::Tensor(), torch::randn({7, 7})}) {
      const auto forward = [&](const at::Tensor& x) { return net->forward(x, mask); };
      const auto backend = expect_frozen(net.ptr(), forward, torch::randn({7, 2, 24}), 1e-4, {}, inference);
      EXPECT_EQ(backend->reports.back().fired("attention"), 1) << backend->programs.back().to_text();
    }
  }
}

TEST(Attention, WhoseWeightsAreReadStays) {
  const auto attention = std::make_shared<OwnAttention>();
  const auto forward = [&](const at::Tensor& x) {
    const at::Tensor q = attention->heads(0, x), weights = at::softmax(q.matmul(q.transpose(-2, -1)), -1);
    return weights.matmul(q).sum() + weights.sum();
  };
  EXPECT_EQ(expect_frozen(attention, forward, torch::randn({2, 5, 24}), 1e-4)->reports.back().fired("attention"), 0);
}

}  // namespace
}  // namespace bellows::graph::testing
