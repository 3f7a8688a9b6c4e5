#include "bellows/inspect/capture.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <functional>

#include "bellows/inspect/module_map.h"
#include "bellows/models/bert.h"
#include "bellows/models/resnet.h"

namespace bellows::inspect {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

/// A network whose forward is given by the test, with modules that the test registers.
struct Net : nn::Module {
  std::function<at::Tensor(const at::Tensor&)> body;
  at::Tensor forward(const at::Tensor& x) { return body(x); }
};

struct Fixture {
  std::shared_ptr<Net> net = std::make_shared<Net>();
  Model model() const { return Model::of(net); }
};

/// A residual block that ends with an addition, as those of GPT-2 do.
struct Residual : nn::Module {
  explicit Residual(int64_t width) {
    first = register_module("first", nn::Linear(width, width));
    second = register_module("second", nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor inner = x + first->forward(x);
    return inner + second->forward(inner.tanh());
  }
  nn::Linear first{nullptr}, second{nullptr};
};

/// A block that ends with operators of which any could be the last one.
struct Activated : nn::Module {
  explicit Activated(int64_t width) { linear = register_module("linear", nn::Linear(width, width)); }
  at::Tensor forward(const at::Tensor& x) { return linear->forward(x).relu(); }
  nn::Linear linear{nullptr};
};

struct Scoped : nn::Module {
  explicit Scoped(int64_t width) { linear = register_module("linear", nn::Linear(width, width)); }
  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope("block");
    return linear->forward(x).relu().mul(2);
  }
  nn::Linear linear{nullptr};
};

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

class Layers : public ::testing::TestWithParam<int> {};

TEST_P(Layers, OfTorchGiveTheResultOfTheirOperators) {
  torch::manual_seed(1);
  Fixture f;
  auto linear = f.net->register_module("linear", nn::Linear(6, 6));
  auto norm = f.net->register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
  at::Tensor a, b;
  f.net->body = [&](const at::Tensor& x) {
    a = linear->forward(x);
    b = norm->forward(a.relu());
    return b.sigmoid();
  };
  const Capture captured = capture(f.model(), {"linear", "norm"});
  const at::Tensor x = GetParam() == 2 ? torch::rand({5, 6}) : torch::rand({2, 5, 6});
  f.model()(x).sum().backward();
  EXPECT_TRUE(captured.output("linear").is_same(a));
  EXPECT_TRUE(captured.output("norm").is_same(b));
}
// F::linear is one operator for matrices, and two for other inputs.
INSTANTIATE_TEST_SUITE_P(Dimensions, Layers, ::testing::Values(2, 3));

TEST(Capture, GradientsAreThoseOfAutograd) {
  torch::manual_seed(1);
  Fixture f;
  auto first = f.net->register_module("first", nn::Linear(4, 4));
  auto second = f.net->register_module("second", nn::Linear(4, 4));
  at::Tensor a;
  f.net->body = [&](const at::Tensor& x) { return second->forward((a = first->forward(x)).relu()); };
  const Capture captured = capture(f.model(), {"first"});
  const at::Tensor loss = f.model()(torch::rand({3, 4})).pow(2).sum();
  EXPECT_THAT(error_of([&] { captured.gradient("first"); }), HasSubstr("no backward pass has reached"));
  const at::Tensor expected = torch::autograd::grad({loss}, {a}, {}, /*retain_graph=*/true)[0];
  loss.backward();
  EXPECT_TRUE(captured.gradient("first").equal(expected));
}

TEST(Capture, BatchNormLstmAndTiedWeights) {
  torch::manual_seed(1);
  Fixture f;
  auto norm = f.net->register_module("norm", nn::BatchNorm1d(4));
  auto lstm = f.net->register_module("lstm", nn::LSTM(4, 4));
  auto head = f.net->register_module("head", nn::Linear(nn::LinearOptions(4, 4).bias(false)));
  f.net->register_module("alias", head);
  at::Tensor a, b;
  f.net->body = [&](const at::Tensor& x) {
    a = norm->forward(x);
    b = std::get<0>(lstm->forward(a.unsqueeze(0)));
    return head->forward(b);
  };
  const Capture captured = capture(f.model(), {"norm", "lstm", "head", "alias"});
  const at::Tensor y = f.model()(torch::rand({3, 4}));
  EXPECT_TRUE(captured.output("norm").is_same(a));
  EXPECT_TRUE(captured.output("lstm").is_same(b));
  EXPECT_TRUE(captured.output("head").is_same(y));
  EXPECT_TRUE(captured.output("alias").is_same(y));
}

TEST(Capture, SequentialReportsItsChildren) {
  torch::manual_seed(1);
  Fixture f;
  auto stage = f.net->register_module(
      "stage", nn::Sequential(nn::Linear(4, 4), nn::ReLU(), std::make_shared<Activated>(4), nn::Dropout(0.5)));
  at::Tensor a;
  f.net->body = [&](const at::Tensor& x) { return (a = stage->forward(x)).sigmoid(); };
  {
    const Capture captured = capture(f.model(), {"stage", "stage.1", "stage.2", "stage.2.linear"});
    f.model()(torch::rand({3, 4}));
    EXPECT_TRUE(captured.output("stage").is_same(a));
    EXPECT_EQ(captured.output("stage.1").lt(0).sum().item<int64_t>(), 0);
    EXPECT_TRUE(captured.output("stage.2").equal(captured.output("stage.2.linear").relu()));
    EXPECT_THROW(stage->at<nn::ReLUImpl>(1), c10::Error) << "its place is taken while it is captured";
  }
  EXPECT_NO_THROW(stage->at<nn::ReLUImpl>(1));
}

TEST(Capture, CapturesOfOneChildEndInAnyOrder) {
  Fixture f;
  auto stage = f.net->register_module("stage", nn::Sequential(nn::Linear(4, 4), nn::ReLU()));
  f.net->body = [&](const at::Tensor& x) { return stage->forward(x); };
  auto outer = std::make_unique<Capture>(f.model(), std::vector<std::string>{"stage.0"});
  const auto inner = std::make_unique<Capture>(f.model(), std::vector<std::string>{"stage.0"});
  f.model()(torch::rand({3, 4}));
  EXPECT_TRUE(outer->output("stage.0").is_same(inner->output("stage.0")));
}

TEST(Capture, ABlockThatEndsWithItsResidualHasOneOutput) {
  torch::manual_seed(1);
  Fixture f;
  auto block = f.net->register_module("block", std::make_shared<Residual>(4));
  auto head = f.net->register_module("head", nn::Linear(4, 2));
  at::Tensor a;
  f.net->body = [&](const at::Tensor& x) { return head->forward(a = block->forward(x)); };
  const Capture captured = capture(f.model(), {"block"});
  f.model()(torch::rand({3, 4}));
  EXPECT_TRUE(captured.output("block").is_same(a));
}

TEST(Capture, AnAmbiguousOutputIsAnErrorThatListsTheOperators) {
  torch::manual_seed(1);
  Fixture f;
  auto block = f.net->register_module("block", std::make_shared<Activated>(4));
  auto head = f.net->register_module("head", nn::Linear(4, 2));
  at::Tensor a;
  f.net->body = [&](const at::Tensor& x) { return head->forward((a = block->forward(x)).mul(2)); };
  {
    const Capture captured = capture(f.model(), {"block"});
    f.model()(torch::rand({3, 4}));
    EXPECT_THAT(error_of([&] { captured.output("block"); }), HasSubstr("addmm, relu, mul. State one of them"));
  }
  const Capture captured = capture(f.model(), {"block"}, {.last_operator = "relu"});
  f.model()(torch::rand({3, 4}));
  EXPECT_TRUE(captured.output("block").is_same(a));
}

TEST(Capture, AModuleScopeStatesTheOutput) {
  Fixture f;
  auto block = f.net->register_module("block", std::make_shared<Scoped>(4));
  at::Tensor a;
  f.net->body = [&](const at::Tensor& x) { return (a = block->forward(x)).relu(); };
  const Capture captured = capture(f.model(), {"block"});
  f.model()(torch::rand({3, 4}));
  EXPECT_TRUE(captured.output("block").is_same(a));
}

TEST(Capture, AnOutputThatChangedInPlaceIsAnErrorUnlessItWasCopied) {
  torch::manual_seed(1);
  Fixture f;
  auto linear = f.net->register_module("linear", nn::Linear(4, 4));
  at::Tensor a;
  f.net->body = [&](const at::Tensor& x) {
    const at::Tensor y = linear->forward(x);
    a = y.detach().clone();
    return y.relu_();
  };
  for (const bool copy : {false, true}) {
    const Capture captured = capture(f.model(), {"linear"}, {.copy = copy});
    f.model()(torch::rand({3, 4}));
    if (copy) {
      EXPECT_TRUE(captured.output("linear").equal(a));
    } else {
      EXPECT_THAT(error_of([&] { captured.output("linear"); }), HasSubstr("changed in place"));
    }
  }
}

TEST(Capture, CountsCallsAndForgetsThem) {
  torch::manual_seed(1);
  Fixture f;
  auto linear = f.net->register_module("linear", nn::Linear(4, 4));
  f.net->body = [&](const at::Tensor& x) { return linear->forward(x); };
  Capture captured = capture(f.model(), {"linear"});
  EXPECT_THAT(error_of([&] { captured.output("linear"); }), HasSubstr("was not called"));
  const at::Tensor a = f.model()(torch::rand({3, 4})), b = f.model()(torch::rand({3, 4}));
  ASSERT_EQ(captured.outputs("linear").size(), 2U);
  EXPECT_TRUE(captured.outputs("linear")[1].is_same(b));
  EXPECT_THAT(error_of([&] { captured.output("linear"); }), HasSubstr("was called 2 times"));
  captured.clear();
  const at::Tensor c = f.model()(torch::rand({3, 4}));
  EXPECT_TRUE(captured.output("linear").is_same(c));
}

TEST(Capture, PenaltiesAndOptimizersAreNoCalls) {
  torch::manual_seed(1);
  Fixture f;
  auto linear = f.net->register_module("linear", nn::Linear(4, 4));
  f.net->body = [&](const at::Tensor& x) { return linear->forward(x); };
  const Capture captured = capture(f.model(), {"linear"});
  const at::Tensor y = f.model()(torch::rand({3, 4}));
  (y.sum() + linear->weight.pow(2).sum()).backward();
  torch::optim::SGD(f.net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)).step();
  EXPECT_TRUE(captured.output("linear").is_same(y));
}

TEST(Capture, UnknownModulesAreNamedWithTheNearestOne) {
  const Model model = models::resnet18();
  EXPECT_THAT(error_of([&] { capture(model, {"layer33"}); }), HasSubstr("no module `layer33`; did you mean `layer3`?"));
  EXPECT_THAT(error_of([&] { capture(model, {}); }), HasSubstr("at least one module"));
  const Capture captured = capture(model, {"layer3"});
  EXPECT_THAT(error_of([&] { captured.output("layer4"); }), HasSubstr("not among the captured"));
}

TEST(Capture, StagesOfResNetFitTogether) {
  torch::manual_seed(1);
  const Model model = models::resnet18();
  model.eval();
  const at::Tensor x = torch::rand({2, 3, 64, 64});
  const at::Tensor plain = model(x);
  const Capture captured = capture(model, {"layer2", "layer3", "layer3.0", "bn1"});
  EXPECT_TRUE(model(x).equal(plain)) << "capturing changes no result";
  const auto layer3 = std::dynamic_pointer_cast<nn::SequentialImpl>(*model.module()->named_modules().find("layer3"));
  ASSERT_TRUE(layer3);
  const at::Tensor output = captured.output("layer3");
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{2, 256, 4, 4}));
  EXPECT_EQ(captured.output("layer3.0").sizes(), output.sizes());
  const at::Tensor again = layer3->forward(captured.outputs("layer2").front());
  EXPECT_TRUE(again.equal(output));
}

TEST(Capture, LayersOfBert) {
  torch::manual_seed(1);
  models::BertOptions options;
  options.num_hidden_layers = 2;
  options.hidden_size = 32;
  options.num_attention_heads = 4;
  options.intermediate_size = 64;
  options.vocab_size = 50;
  const Model model = models::bert(options);
  model.eval();
  const Capture captured = capture(model, {"bert.encoder.layer.0", "bert.encoder.layer.0.output.LayerNorm",
                                           "bert.encoder.layer.1.attention.self.query"});
  model(torch::randint(50, {2, 7}));
  EXPECT_TRUE(captured.output("bert.encoder.layer.0").equal(captured.output("bert.encoder.layer.0.output.LayerNorm")));
  const at::Tensor query = captured.output("bert.encoder.layer.1.attention.self.query");
  const auto parameters = model.module()->named_parameters();
  const at::Tensor expected = at::linear(captured.output("bert.encoder.layer.0"),
                                         parameters["bert.encoder.layer.1.attention.self.query.weight"],
                                         parameters["bert.encoder.layer.1.attention.self.query.bias"]);
  EXPECT_TRUE(query.equal(expected));
}

}  // namespace
}  // namespace bellows::inspect
