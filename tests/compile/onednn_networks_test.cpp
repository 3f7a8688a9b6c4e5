// Whole networks on oneDNN's primitives: what stays in its order, and that they learn and predict as plain ones.
#include <ATen/autocast_mode.h>

#include <chrono>
#include <thread>

#include "bellows/compile.h"
#include "bellows/models/resnet.h"
#include "bellows/models/unet.h"
#include "tests/compile/onednn_support.h"
#include "tests/models/small_models.h"

namespace bellows::compile_detail::testing {
namespace {

namespace nn = torch::nn;

/// Convolutions, norms, a residual sum, pooling: as in a ResNet.
struct SmallNetImpl : nn::Module {
  SmallNetImpl() {
    const auto conv = [](int64_t in, int64_t out, int64_t stride) {
      return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
    };
    stem = register_module("stem", conv(3, 16, 1));
    first = register_module("first", conv(16, 16, 1));
    second = register_module("second", conv(16, 16, 1));
    norms = register_module("norms", nn::ModuleList(nn::BatchNorm2d(16), nn::BatchNorm2d(16), nn::BatchNorm2d(16)));
    head = register_module("head", nn::Linear(16, 10));
  }
  at::Tensor norm(size_t i, const at::Tensor& x) { return norms[i]->as<nn::BatchNorm2d>()->forward(x); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::max_pool2d(norm(0, stem(x)).relu_(), 3, 2, 1);
    const at::Tensor z = norm(2, second(norm(1, first(y)).relu_())).add_(y).relu_();
    return head(z.mean({2, 3}));
  }
  nn::Conv2d stem{nullptr}, first{nullptr}, second{nullptr};
  nn::ModuleList norms{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(SmallNet);

struct Trained {
  std::vector<double> losses;
  Tensors state;
  OnednnReport report;
  std::string text;
};

/// Steps of SGD with momentum. Params: make – a network, made anew from one seed
template <class Make>
Trained train(const Make& make, std::vector<int64_t> sizes, int steps, double lr, at::ScalarType type, bool compiled) {
  at::set_num_threads(1);  // steps of many small kernels: threads of a busy machine would wait for each other
  torch::manual_seed(1);
  auto module = make();
  const std::shared_ptr<nn::Module> base = module.base;
  base->to(type);
  const at::Tensor x = torch::randn(sizes).to(type), y = torch::randint(0, 10, {sizes[0]});
  torch::optim::SGD optimizer(base->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  const auto backend = std::make_shared<OnednnBackend>();
  graph::Region region({.backend = compiled ? backend : nullptr});
  Trained made;
  for (int step = 0; step < steps; ++step) {
    at::Tensor loss;
    const auto body = [&] {
      optimizer.zero_grad();
      loss = nn::functional::cross_entropy(module.forward(x), y);
      loss.backward();
      optimizer.step();
    };
    compiled ? region.run(body) : body();
    made.losses.push_back(loss.item<double>());
  }
  for (const auto& parameter : base->parameters()) made.state.push_back(parameter.detach());
  for (const auto& buffer : base->buffers()) made.state.push_back(buffer);
  if (!backend->reports.empty()) made.report = backend->reports.back();
  made.text = backend->text;
  return made;
}

struct Net {
  std::shared_ptr<nn::Module> base;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

Net small_net() {
  SmallNet net;
  return {net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); }};
}

Net resnet18() {
  const Model model = models::resnet18({.num_classes = 10});
  return {model.module(), [model](const at::Tensor& x) { return model.forward(x); }};
}

double distance(const Tensors& a, const Tensors& b) {
  double sum = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i].to(at::kDouble) - b[i].to(at::kDouble)).pow(2).sum().item<double>();
    size += b[i].to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(sum / size);
}

TEST(OnednnNetworks, SmallNetStaysChannelsLastAndLearnsAlike) {
  const Trained ours = train(small_net, {4, 3, 20, 20}, 10, 0.05, at::kFloat, true),
                plain = train(small_net, {4, 3, 20, 20}, 10, 0.05, at::kFloat, false),
                exact = train(small_net, {4, 3, 20, 20}, 10, 0.05, at::kDouble, false);
  EXPECT_EQ(ours.report.convolutions, 8) << ours.text;
  EXPECT_EQ(ours.report.norms, 6) << ours.text;
  EXPECT_EQ(ours.report.pools, 2) << ours.text;
  // Within norms: two relu, forward and backward. Beside them a relu and a sum; backward: the sum of the two gradients of y. The
  // mean's gradient comes as it is. The mean and a sum read the image in oneDNN's order.
  EXPECT_EQ(ours.report.fused, 4) << ours.text;
  EXPECT_EQ(ours.report.followed, 5) << ours.text;
  for (size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(ours.losses[i], exact.losses[i], 1e-4 * exact.losses[i]) << i;
  EXPECT_LE(distance(ours.state, exact.state), 2 * distance(plain.state, exact.state) + 1e-6);
}

TEST(OnednnNetworks, ResNet18LearnsAlikeOverTenSteps) {
  const Trained ours = train(resnet18, {2, 3, 64, 64}, 10, 0.005, at::kFloat, true),
                plain = train(resnet18, {2, 3, 64, 64}, 10, 0.005, at::kFloat, false);
  EXPECT_EQ(ours.report.convolutions, 20 * 3 - 1) << ours.text;  // the first has no gradient of its input
  EXPECT_EQ(ours.report.norms, 40) << ours.text;
  EXPECT_EQ(ours.report.pools, 2) << ours.text;
  for (size_t i = 0; i < plain.losses.size(); ++i)
    EXPECT_NEAR(ours.losses[i], plain.losses[i], 2e-3 * plain.losses[i]) << i;
  EXPECT_LE(distance(ours.state, plain.state), 1e-3);
}

TEST(OnednnNetworks, CatsOfImagesStayChannelsLast) {
  for (const at::ScalarType type : primitive_types()) {
    torch::manual_seed(1);
    const at::Tensor x = torch::randn({3, 16, 7, 5}).to(type), a = torch::randn({16, 16, 3, 3}).to(type) / 12,
                     b = torch::randn({48, 16, 1, 1}).to(type) / 4, c = torch::randn({16, 80, 3, 3}).to(type) / 27;
    const auto run = [&](at::ScalarType as) {
      return [=] {
        const at::NoGradGuard no_grad;
        const auto in = [&](const at::Tensor& t) { return t.to(as); };
        const at::Tensor left = at::conv2d(in(x), in(a), {}, 1, 1), right = at::conv2d(in(x), in(b));
        const at::Tensor all = at::cat({left, right, in(x)}, 1);
        return Tensors{at::conv2d(all, in(c)) + at::conv2d(all, in(c)), at::cat({right, left}, 1)};
      };
    };
    const Outcome ours = with_onednn(run(type), {a, b, c});
    const Tensors exact = run(at::kDouble)();
    EXPECT_EQ(ours.report.convolutions, 4) << ours.text;
    EXPECT_EQ(ours.report.followed, 2) << ours.text;
    EXPECT_EQ(ours.report.reorders, 3) << "x, and both results: " << ours.text;
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LE(largest(ours.tensors[i].to(at::kDouble) - exact[i]),
                largest(exact[i]) * (type == at::kFloat ? 1e-6 : 1e-2))
          << i;
  }
}

// A part may be written before the convolution runs: then there is a copy.
TEST(OnednnNetworks, ConvolutionsOfCatsAddUpTheirParts) {
  for (const at::ScalarType type : primitive_types()) {
    for (const bool frozen : {true, false}) {
      for (const bool written : {false, true}) {
        torch::manual_seed(1);
        const at::Tensor x = torch::randn({2, 16, 7, 5}).to(type), a = torch::randn({16, 16, 3, 3}).to(type) / 12,
                         b = torch::randn({48, 16, 1, 1}).to(type) / 4, bias = torch::randn({16}).to(type),
                         c = torch::randn({16, 80, 3, 3}).to(type) / 27;
        const auto run = [&](at::ScalarType as) {
          return [=] {
            const at::NoGradGuard no_grad;
            const auto in = [&](const at::Tensor& t) { return t.to(as); };
            const at::Tensor left = at::conv2d(in(x), in(a), {}, 1, 1), right = at::conv2d(in(x), in(b)),
                             all = at::cat({left, in(x), right}, 1);
            if (written) left.mul_(2);
            return Tensors{(at::conv2d(all, in(c), in(bias), 1, 1) + left).relu(), left.clone()};
          };
        };
        const Outcome ours = with_onednn(run(type), frozen ? Tensors{a, b, c, bias} : Tensors{});
        const Tensors exact = run(at::kDouble)(), plain = run(type)();
        EXPECT_EQ(ours.report.convolutions, written ? 3 : 5) << ours.text;
        EXPECT_EQ(ours.text.find("cat of channels") != std::string::npos, written) << ours.text;
        const double error = largest(plain[0].to(at::kDouble) - exact[0]);
        EXPECT_LE(largest(ours.tensors[0].to(at::kDouble) - exact[0]), 2 * error + 1e-6 * largest(exact[0]));
      }
    }
  }
}

TEST(OnednnNetworks, GradientsThatArePartsOfOneAreReadChannelsLast) {
  torch::manual_seed(1);
  const Tensors data{torch::randn({2, 16, 5, 6}), torch::randn({16, 24, 2, 2}) / 8, torch::randn({24}),
                     torch::randn({2, 8, 10, 12}), torch::randn({16, 32, 3, 3}) / 17};
  const auto run = [&](at::ScalarType type) {
    return [&data, type] {
      Tensors leaves, made;
      for (const at::Tensor& tensor : data) leaves.push_back(tensor.to(type).detach().clone().requires_grad_());
      const at::Tensor up = at::conv_transpose2d(leaves[0] * 1, leaves[1], leaves[2], 2);
      at::conv2d(at::cat({leaves[3] * 1, up}, 1), leaves[4], {}, 1, 1).pow(2).sum().backward();
      for (const at::Tensor& leaf : leaves) made.push_back(leaf.grad());
      return made;
    };
  };
  const Outcome ours = with_onednn(run(at::kFloat));
  EXPECT_EQ(ours.report.convolutions, 6) << ours.text;
  EXPECT_EQ(ours.text.find("aten::convolution"), std::string::npos) << ours.text;
  const Tensors plain = run(at::kFloat)(), exact = run(at::kDouble)();
  for (size_t i = 0; i < exact.size(); ++i)
    expect_as_exact(ours.tensors[i], plain[i], exact[i], c10::str("gradient ", i));
}

TEST(OnednnNetworks, InferenceFoldsNormsSumsAndRelu) {
  torch::manual_seed(1);
  const Net net = resnet18();
  net.base->eval();
  const at::NoGradGuard no_grad;
  for (const auto& buffer : net.base->buffers()) {
    if (buffer.is_floating_point()) buffer.uniform_(0.5, 1.5);
  }
  const at::Tensor x = torch::randn({1, 3, 64, 64});
  const auto run = [&] { return Tensors{net.forward(x)}; };
  Tensors frozen = net.base->parameters();
  for (const auto& buffer : net.base->buffers()) frozen.push_back(buffer);
  const at::Tensor plain = run()[0];
  for (const Tensors& constants : {Tensors{}, frozen}) {
    const Outcome ours = with_onednn(run, constants);
    EXPECT_EQ(ours.report.convolutions, 20) << ours.text;
    EXPECT_EQ(ours.report.fused, 20 + 17 + 8) << ours.text;                  // norms, relu, sums
    EXPECT_EQ(ours.report.packed, constants.empty() ? 0 : 21) << ours.text;  // and the head's weight
    EXPECT_LE(ours.report.reorders, constants.empty() ? 22 : 2) << ours.text;
    EXPECT_LE(largest(ours.tensors[0] - plain), 1e-4 * largest(plain));
  }
}

struct Bf16 {
  explicit Bf16(bool on) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::increment_nesting();
  }
  ~Bf16() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

/// Compiled in inference mode with frozen weights, for one input after the other, and then with weights in the place of these.
void expect_predicts_alike(const Model& model, const Tensors& inputs, bool bf16, double tolerance) {
  Model changing = model;
  changing.eval();
  Tensors frozen;
  for (const auto& [name, tensor] : model.state_dict()) frozen.push_back(tensor);
  const auto plain = [&](const at::Tensor& x) {
    const c10::InferenceMode inference;
    const Bf16 autocast(bf16);
    return model.forward(x);
  };
  auto compiled = compile(plain, {.frozen = frozen});
  const auto expect_alike = [&](const std::string& when) {
    for (const at::Tensor& x : inputs) {
      for (int call = 0; call < 4; ++call) compiled(x);
      while (!compiled.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const at::Tensor ours = compiled(x), expected = plain(x);
      const c10::InferenceMode inference;
      EXPECT_LE(largest((ours - expected).to(at::kDouble)), tolerance * largest(expected.to(at::kDouble)))
          << when << ", input of " << x.sizes();
    }
  };
  expect_alike("frozen");
  EXPECT_EQ(compiled.explain().to_text().find("onednn") == std::string::npos, false) << compiled.explain().to_text();
  for (auto& [name, parameter] : changing.named_parameters()) {
    const at::NoGradGuard no_grad;
    parameter.set_data(parameter * 1.1);
  }
  expect_alike("other weights");
}

TEST(OnednnNetworks, InferencePredictsAsPlainCode) {
  torch::manual_seed(1);
  models::BertOptions text = models::wide_bert();
  text.hidden_size = 48;
  text.num_attention_heads = 3;
  text.intermediate_size = 100;
  text.mask_padding = false;
  const Tensors images{torch::randn({1, 3, 40, 36}), torch::randn({2, 3, 36, 52})},
      tokens{torch::randint(1, 50, {1, 13}), torch::randint(1, 50, {2, 7}), torch::randint(1, 50, {1, 1})};
  for (const bool bf16 : {false, true}) {
    const double tolerance = bf16 ? 5e-2 : 1e-4;  // bf16 keeps 8 bits, and plain code rounds more often
    expect_predicts_alike(models::resnet18({.num_classes = 10}), images, bf16, tolerance);
    expect_predicts_alike(models::unet({.channels = 8, .depth = 2}), images, bf16, tolerance);
    expect_predicts_alike(models::unet({.channels = 8, .depth = 2, .bilinear = true}), images, bf16, tolerance);
    expect_predicts_alike(models::bert(text), tokens, bf16, tolerance);
  }
}

}  // namespace
}  // namespace bellows::compile_detail::testing
