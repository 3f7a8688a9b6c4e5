// Quantized models in programs that change modes, weights or the use of layers.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>

#include "bellows/quant/quantize.h"
#include "bellows/tap/op_tap.h"
#include "tests/quant/networks.h"
#include "tests/support/errors.h"

namespace bellows::quant {
namespace {

using samples::batches_of;
using samples::model_of;
using samples::Small;
using ::testing::HasSubstr;

/// A convolution and a norm, called as the test says.
struct ConvNormImpl : torch::nn::Module {
  using Body = std::function<std::vector<at::Tensor>(ConvNormImpl&, const at::Tensor&)>;
  explicit ConvNormImpl(Body body) : body_(std::move(body)) {
    torch::manual_seed(5);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 3, 3).padding(1)));
    other = register_module("other", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    const torch::NoGradGuard no_gradients;
    norm->running_mean.fill_(0.5);
    norm->running_var.fill_(4);
  }
  std::vector<at::Tensor> forward(const at::Tensor& x) { return body_(*this, x); }
  torch::nn::Conv2d conv{nullptr}, other{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};

 private:
  Body body_;
};
TORCH_MODULE(ConvNorm);

Model model_of_body(const ConvNorm& net, std::vector<std::string> outputs = {"output"}) {
  const auto module = net.ptr();
  Model model("net", module, {{"x"}}, std::move(outputs),
              [module](const std::vector<at::Tensor>& x) { return module->forward(x[0]); });
  model.eval();
  return model;
}

/// The quality of all outputs of the quantized model, in decibels.
double worst_sqnr(const Model& model, const Quantized& made, const at::Tensor& x) {
  const torch::NoGradGuard no_gradients;
  const auto expected = model.forward_all({x}), got = made.model.forward_all({x});
  double worst = 1000;
  for (size_t i = 0; i < got.size(); ++i) worst = std::min(worst, sqnr(expected[i], got[i]));
  return worst;
}

TEST(QuantizedModelSafety, NormsThatAreUsedElsewhere) {
  const auto batches = batches_of({2, 3, 8, 8});
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  const std::vector<std::pair<const char*, ConvNormImpl::Body>> bodies{
      {"twice",
       [](ConvNormImpl& m, const at::Tensor& y) { return std::vector{m.norm(torch::relu(m.norm(m.conv(y))))}; }},
      {"behind another layer",
       [](ConvNormImpl& m, const at::Tensor& y) { return std::vector{m.norm(m.conv(y)) + m.norm(m.other(y))}; }},
      {"without a layer",
       [](ConvNormImpl& m, const at::Tensor& y) { return std::vector{m.norm(m.conv(y)) + m.norm(y)}; }}};
  for (const auto& [name, body] : bodies) {
    const Model model = model_of_body(ConvNorm(body));
    const bool has_other = std::string(name) == "behind another layer";
    const Options options{.skip = has_other ? std::vector<std::string>{"oth*"} : std::vector<std::string>{}};
    EXPECT_GT(worst_sqnr(model, quantize(model, options, batches), x), 30) << name;
  }
  const Model model = model_of_body(ConvNorm([](ConvNormImpl& m, const at::Tensor& y) {
                                      const at::Tensor z = m.conv(y);
                                      return std::vector{z, m.norm(z)};
                                    }),
                                    {"before", "after"});
  EXPECT_GT(worst_sqnr(model, quantize(model, {.skip = {}}, batches), x), 30) << "the result is also an output";
}

TEST(QuantizedModelSafety, CallsThatDifferFromCalibration) {
  bool twice = false;
  const Model model = model_of_body(ConvNorm([&](ConvNormImpl& m, const at::Tensor& y) {
    const at::Tensor z = m.conv(y);
    return std::vector{twice ? torch::relu(z) : m.norm(z)};
  }));
  const auto batches = batches_of({2, 3, 8, 8});
  const Quantized made = quantize(model, {}, batches);
  twice = true;
  EXPECT_THAT(message_of([&] { made.model.forward_all(batches[0]); }),
              HasSubstr("this call does not apply the norm to its result. Set `fold_norms` to false."));
  int calls = 0;
  const Model later = model_of_body(ConvNorm([&](ConvNormImpl& m, const at::Tensor& y) {
    const at::Tensor z = m.conv(y);
    return std::vector{++calls > 1 ? m.norm(z) + z : m.norm(z)};
  }));
  EXPECT_GT(worst_sqnr(later, quantize(later, {}, batches), batches[0][0]), 30) << "a later batch reads it twice";
}

TEST(QuantizedModelSafety, Autocast) {
  const Model model = model_of(Small());
  const auto batches = batches_of({4, 3, 12, 12});
  const at::Tensor expected = quantize(model, {}, batches).model.forward(batches[0][0]);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Quantized made = quantize(model, {.release_weights = true}, batches);
  const at::Tensor got = made.model.forward(batches[0][0]);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(got.equal(expected));
}

TEST(QuantizedModelSafety, TrainingMode) {
  const Model model = model_of(Small());
  const auto batches = batches_of({4, 3, 12, 12});
  const Quantized made = quantize(model, {}, batches);
  model.train();
  EXPECT_THAT(message_of([&] { made.model.forward(batches[0][0]); }), HasSubstr("is in training mode. Call eval()"));
  {
    const EvalMode evaluation(made.model);  // must not throw in its destructor
  }
  EXPECT_FALSE(made.model.training());
}

TEST(QuantizedModelSafety, ReplacedWeights) {
  Small net;
  const Model model = model_of(net);
  const auto batches = batches_of({4, 3, 12, 12});
  const Quantized made = quantize(model, {}, batches);
  net->to(torch::kDouble);
  EXPECT_THAT(message_of([&] { made.model.forward(batches[0][0]); }), HasSubstr("was replaced after quantization"));
}

/// A linear whose square weight is also used without transposition, or with a sparse matrix.
struct SquareImpl : torch::nn::Module {
  SquareImpl() { fc = register_module("fc", torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false))); }
  at::Tensor forward(const at::Tensor& x) {
    if (way == 1) return x.mm(fc->weight);
    if (way == 2) return torch::mm(torch::eye(8).to_sparse(), fc(x));
    if (way == 3) return torch::mm(fc(x), torch::eye(8).to_sparse());
    return fc(x);
  }
  torch::nn::Linear fc{nullptr};
  int way = 0;
};
TORCH_MODULE(Square);

TEST(QuantizedModelSafety, OtherUsesOfAWeight) {
  const at::Tensor x = torch::randn({8, 8});
  for (const bool release : {false, true}) {
    Square net;
    const Model model = model_of(net);
    const Quantized made = quantize(model, {.release_weights = release}, batches_of({4, 8}));
    net->way = 1;
    const at::Tensor got = made.model.forward(x);
    if (release)
      EXPECT_TRUE(got.isnan().all().item<bool>());
    else
      EXPECT_TRUE(got.equal(samples::plain(model, x)));
    for (const int way : {2, 3}) {
      net->way = way;
      EXPECT_TRUE(made.model.forward(x).isfinite().all().item<bool>());
    }
  }
}

TEST(QuantizedModelSafety, SmallInputs) {
  const torch::nn::Linear net(8, 4);
  const std::vector<std::vector<at::Tensor>> empty{{torch::zeros({0, 8})}};
  EXPECT_THAT(message_of([&] { quantize(model_of(net), {}, empty); }), HasSubstr("calibration gave it no inputs"));
  const Quantized made = quantize(model_of(net), {}, batches_of({4, 8}));
  EXPECT_EQ(made.model.forward(torch::zeros({0, 8})).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(made.model.forward(torch::randn({8})).sizes(), at::IntArrayRef({4}));
}

TEST(QuantizedModelSafety, InferenceInputsThatTheModelChanges) {
  const torch::nn::Sequential net(torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Linear(8, 4));
  const Quantized made = quantize(model_of(net), {}, batches_of({4, 8}));
  c10::InferenceMode inference;
  EXPECT_EQ(made.model.forward(torch::randn({2, 8})).size(0), 2);
}

TEST(QuantizedModelSafety, Biases) {
  struct Two : torch::nn::Module {
    Two() {
      weight = register_parameter("weight", torch::randn({6, 8}));
      one = register_parameter("one", torch::randn({1}));
      six = register_parameter("six", torch::randn({6}));
    }
    at::Tensor forward(const at::Tensor& x) {
      return torch::addmm(one, x, weight.t()) - torch::addmm(six, x * 2, weight.t());
    }
    at::Tensor weight, one, six;
  };
  const auto module = std::make_shared<Two>();
  const Model model("net", module, [module](const at::Tensor& x) { return module->forward(x); });
  const auto batches = batches_of({16, 8});
  for (const Method method : {Method::static_range, Method::dynamic, Method::weight_only}) {
    for (const bool correct : {false, true}) {
      const Quantized made = quantize(model, {.method = method, .correct_bias = correct}, batches);
      EXPECT_GT(sqnr(samples::plain(model, batches[0][0]), made.model.forward(batches[0][0])), 30) << name_of(method);
    }
  }
}

TEST(QuantizedModelSafety, ConvolutionsOfTracedModels) {
  const torch::nn::Conv2d net(torch::nn::Conv2dOptions(3, 4, 3));
  const auto module = net.ptr();
  const Model traced("net", module, [module](const at::Tensor& x) {
    return at::_convolution(x, module->weight, module->bias, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1, false, false,
                            true, true);
  });
  const auto batches = batches_of({2, 3, 8, 8});
  const Quantized made = quantize(traced, {}, batches);
  EXPECT_EQ(made.report.quantized(), 1);
  EXPECT_GT(sqnr(samples::plain(traced, batches[0][0]), made.model.forward(batches[0][0])), 30);
  const torch::nn::ConvTranspose2d up(torch::nn::ConvTranspose2dOptions(3, 4, 3));
  EXPECT_THAT(message_of([&] { quantize(model_of(up), {}, batches); }),
              HasSubstr("transposed convolutions are not supported"));
}

/// Counts operators by name.
struct OperatorCounts : tap::OpTap {
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    ++counts[std::string(op.name())];
    op.next(stack);
  }
  std::map<std::string, int> counts;
};

std::map<std::string, int> operators_of(const Model& model, const at::Tensor& x) {
  const auto seen = std::make_shared<OperatorCounts>();
  const tap::OpTapGuard guard(seen);
  model.forward(x);
  return seen->counts;
}

TEST(QuantizedModelSafety, LayersTakeNoViewsAroundThem) {
  const torch::nn::Linear linear(16, 8);
  const Model rows("net", linear.ptr(),
                   [&](const at::Tensor& x) { return at::linear(x, linear->weight, linear->bias); });
  const auto batches = batches_of({2, 3, 16});
  EXPECT_EQ(operators_of(quantize(rows, {}, batches).model, batches[0][0]),
            (std::map<std::string, int>{{"bellows::quantize", 1}, {"bellows::quantized_linear", 1}}));
  EXPECT_EQ(operators_of(quantize(model_of(linear), {}, batches).model, batches[0][0]),  // calls matmul
            (std::map<std::string, int>{
                {"aten::t", 1}, {"bellows::quantize", 1}, {"bellows::quantized_linear", 1}, {"aten::add_", 1}}));
  const ConvNorm net([](ConvNormImpl& m, const at::Tensor& x) { return std::vector{m.norm(m.conv(x))}; });
  const Quantized image = quantize(model_of_body(net), {}, batches_of({2, 3, 8, 8}));
  EXPECT_EQ(operators_of(image.model, torch::randn({2, 3, 8, 8})),
            (std::map<std::string, int>{{"bellows::quantize", 1}, {"bellows::quantized_convolution", 1}}));
}

TEST(QuantizedModelSafety, LayersInCompositeOperators) {
  const torch::nn::Conv2d net(torch::nn::Conv2dOptions(3, 3, 3));
  const torch::nn::Linear linear(8, 8);
  using Body = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<Body> bodies{
      [&](const at::Tensor& x) { return at::conv2d(x, net->weight, net->bias, 1, "same"); },
      [&](const at::Tensor& x) { return at::conv2d(x[0], net->weight, net->bias).unsqueeze(0); },
      [&](const at::Tensor& x) { return at::conv2d(x, net->weight, net->bias, 2, 1); },
      [&](const at::Tensor& x) { return torch::matmul(x, linear->weight.t()); },
      [&](const at::Tensor& x) { return at::linear(x, linear->weight, linear->bias).relu_(); }};
  for (size_t i = 0; i < bodies.size(); ++i) {
    SCOPED_TRACE(i);
    const std::shared_ptr<torch::nn::Module> module =
        i < 3 ? net.ptr() : std::shared_ptr<torch::nn::Module>(linear.ptr());
    Model model("net", module, bodies[i]);
    const auto batches = batches_of({2, 3, 8, 8});
    const Quantized made = quantize(model, {}, batches);
    const auto seen = operators_of(made.model, batches[0][0]);
    EXPECT_EQ(seen.count("bellows::quantized_linear") + seen.count("bellows::quantized_convolution"), 1);
    EXPECT_EQ(seen.count("aten::mm") + seen.count("aten::bmm") + seen.count("aten::convolution"), 0);
    EXPECT_GT(sqnr(samples::plain(model, batches[0][0]), made.model.forward(batches[0][0])), 25);
  }
}

TEST(QuantizedModelSafety, Names) {
  const Model model = model_of(Small());
  const auto batches = batches_of({4, 3, 12, 12});
  EXPECT_THAT(message_of([&] { quantize(model, {.skip = {"fist"}}, batches); }),
              HasSubstr("no layer has the name \"fist\". Did you mean \"first\"?"));
  EXPECT_EQ(quantize(model, {.skip = {"*r*t"}}, batches).report.quantized(), 2);
  const Quantized made = quantize(model, {}, batches);
  EXPECT_THAT(message_of([&] { quantize(made.model, {}, batches); }), HasSubstr("or it is quantized already"));
  EXPECT_THAT(
      message_of([&] { quantize(model, {.method = Method::weight_only, .weights = weight_scheme(1)}, batches); }),
      HasSubstr("need at least 2 bits"));
}

}  // namespace
}  // namespace bellows::quant
