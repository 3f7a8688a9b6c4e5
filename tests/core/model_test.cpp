#include "bellows/core/model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/channels_last.h"
#include "bellows/core/error.h"
#include "bellows/core/weight_bytes.h"

namespace bellows {

namespace {

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(3, 8, 3));
    pointwise = register_module("pointwise", torch::nn::Conv2d(8, 8, 1));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    fc = register_module("fc", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(norm(pointwise(conv(x))).mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr}, pointwise{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(SmallNet);

NamedTensors copied(const Model& model) {
  NamedTensors result;
  for (const auto& [name, tensor] : model.state_dict()) result.emplace_back(name, tensor.detach().clone());
  return result;
}

}  // namespace

TEST(Model, WrapsHoldersAndSharedPointers) {
  SmallNet net;
  const Model model = Model::of(net, "small");
  const Model other = Model::of(net.ptr());
  const at::Tensor x = torch::randn({2, 3, 5, 5});
  model.eval();
  EXPECT_FALSE(net->is_training());
  EXPECT_TRUE(torch::equal(model->forward(x), other(x)));
  EXPECT_EQ(model.parameters().size(), net->parameters().size());
  EXPECT_EQ(model.state_dict().size(), net->parameters().size() + net->buffers().size());
  EXPECT_EQ(model.module().get(), net.get());
}

namespace {

/// Two inputs, the second with a default; two outputs.
struct PairNetImpl : torch::nn::Module {
  PairNetImpl() : fc(register_module("fc", torch::nn::Linear(3, 2))) {}
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b = {}) {
    const at::Tensor y = fc(a);
    return {b.defined() ? y + fc(b) : y, y};
  }
  torch::nn::Linear fc;
};
TORCH_MODULE(PairNet);

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "no error";
}

}  // namespace

TEST(Model, HasNamedInputsAndOutputs) {
  PairNet net;
  const Model model = Model::of(net, {"a", "b"}, {"sum", "first"}, "pair");
  EXPECT_EQ(model.inputs(), (std::vector<ModelInput>{{"a"}, {"b"}}));
  EXPECT_EQ(model.outputs(), (std::vector<std::string>{"sum", "first"}));
  const at::Tensor a = torch::randn({4, 3}), b = torch::randn({4, 3});
  const NamedTensors outputs = model.forward({{"b", b}, {"a", a}});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].first, "sum");
  EXPECT_TRUE(torch::equal(outputs[0].second, net->fc(a) + net->fc(b)));
  EXPECT_TRUE(torch::equal(outputs[1].second, net->fc(a)));
  EXPECT_TRUE(torch::equal(model.forward_all({a, b}).front(), outputs[0].second));
}

TEST(Model, MayLeaveOutOptionalInputs) {
  PairNet net;
  const Model model("pair", net.ptr(), {{"a"}, {"b", true}}, {"sum", "first"}, [net](const auto& x) mutable {
    const auto [sum, first] = net->forward(x[0], x[1]);
    return std::vector<at::Tensor>{sum, first};
  });
  const at::Tensor a = torch::randn({4, 3});
  EXPECT_TRUE(torch::equal(model.forward(a), net->fc(a)));
  EXPECT_TRUE(torch::equal(model.forward({{"a", a}}).front().second, net->fc(a)));
}

TEST(Model, SaysWhichInputsItExpects) {
  const Model model = Model::of(PairNet(), {"left", "right"}, {"sum", "first"}, "pair");
  const at::Tensor x = torch::randn({4, 3});
  EXPECT_EQ(message_of([&] {
              model.forward({{"left", x}});
            }),
            "Model \"pair\": input \"right\" is missing; expected left, right.");
  EXPECT_EQ(message_of([&] {
              model.forward({{"left", x}, {"rigth", x}});
            }),
            "Model \"pair\": expected the inputs left, right, got \"rigth\". Did you mean \"right\"?");
  EXPECT_EQ(message_of([&] {
              model.forward({{"left", x}, {"left", x}});
            }),
            "Model \"pair\": input \"left\" is given twice.");
  EXPECT_EQ(message_of([&] { model.forward(x); }),
            "Model: expected the inputs left, right, got one tensor. Call forward({{\"left\", …}, …}).");
  EXPECT_EQ(message_of([&] { Model::of(PairNet(), {"a", "a"}); }), "Model \"model\": two inputs are called \"a\".");
  EXPECT_EQ(message_of([&] {
              Model::of(PairNet(), {"a", "b", "c"}, {"x", "y"}).forward_all({x, x, x});
            }),
            "Model::of: the module's forward does not take 3 tensors, as many as inputs are named.");
  EXPECT_EQ(message_of([&] {
              Model::of(PairNet(), {"a", "b"}).forward_all({x, x});
            }),
            "Model: expected forward to return 1 tensors (output), got 2.");
}

TEST(Model, CastsItsWeightsInPlace) {
  SmallNet net;
  const Model model = Model::of(net);
  const at::Tensor weight = model.parameters().front();
  model.to(at::kBFloat16);
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->conv->weight.scalar_type(), at::kBFloat16);
  for (const at::Tensor& buffer : model.buffers())
    EXPECT_EQ(buffer.scalar_type(), buffer.is_floating_point() ? at::kBFloat16 : at::kLong);
}

TEST(Model, WrappersPassEverythingOn) {
  PairNet net;
  const Model inner = Model::of(net, {"a", "b"}, {"sum", "first"});
  const Model outer("outer", std::make_shared<ModelWrapper>(inner));
  EXPECT_EQ(outer.inputs(), inner.inputs());
  EXPECT_EQ(outer.outputs(), inner.outputs());
  EXPECT_EQ(outer.module(), inner.module());
  const at::Tensor a = torch::randn({4, 3});
  EXPECT_TRUE(torch::equal(outer.forward_all({a, a}).front(), inner.forward_all({a, a}).front()));
  EXPECT_EQ(inner.renamed("new").name(), "new");
}

TEST(Model, EvalModeGivesEveryPartItsOwnModeBack) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2), torch::nn::Dropout());
  const Model model = Model::of(net);
  model.train();
  net->ptr(1)->eval();
  {
    const EvalMode evaluating(model);
    for (const auto& part : net->modules()) EXPECT_FALSE(part->is_training());
  }
  EXPECT_TRUE(model.training());
  EXPECT_FALSE(net->ptr(1)->is_training());
  EXPECT_TRUE(net->ptr(2)->is_training());
}

TEST(Model, LoadStateDictReportsAndRefuses) {
  const Model model = Model::of(SmallNet(), "small");
  const Model source = Model::of(SmallNet());
  NamedTensors weights = copied(source);
  EXPECT_TRUE(load_state_dict(model, weights).complete());
  EXPECT_TRUE(torch::equal(model.parameters()[0], source.parameters()[0]));

  NamedTensors wrong = copied(Model::of(SmallNet()));
  for (auto& [name, tensor] : wrong) {
    if (name == "fc.weight") name = "fc.weigth";
    if (name == "fc.bias") tensor = torch::zeros({7});
  }
  try {
    load_state_dict(model, wrong);
    FAIL();
  } catch (const c10::ValueError& error) {
    const std::string message = user_message(error);
    EXPECT_NE(message.find("missing (1): fc.weight"), std::string::npos) << message;
    EXPECT_NE(message.find("fc.weigth Did you mean \"fc.weight\"?"), std::string::npos) << message;
    EXPECT_NE(message.find("fc.bias: file [7], model [4]"), std::string::npos) << message;
  }
  EXPECT_TRUE(torch::equal(model.parameters()[0], source.parameters()[0])) << "a refused load changes nothing";
  const LoadReport report = load_state_dict(model, wrong, /*strict=*/false);
  EXPECT_EQ(report.missing, std::vector<std::string>{"fc.weight"});
  EXPECT_TRUE(torch::equal(model.parameters()[0], wrong[0].second));
}

TEST(Model, WeightBytesCountsSharedTensorsOnce) {
  const SmallNet net;
  const Model model = Model::of(net);
  int64_t expected = 0;
  for (const auto& [name, tensor] : model.state_dict()) expected += static_cast<int64_t>(tensor.nbytes());
  EXPECT_EQ(weight_bytes(model), expected);
  torch::nn::Sequential tied(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  tied->ptr(1)->as<torch::nn::Linear>()->weight.set_data(tied->ptr(0)->as<torch::nn::Linear>()->weight);
  EXPECT_EQ(weight_bytes(Model::of(tied)), 4 * (16 + 4 + 4));
  const auto meta = std::make_shared<torch::nn::Module>();
  for (const char* name : {"a", "b"}) meta->register_buffer(name, at::empty({3, 5}, at::kMeta));
  EXPECT_EQ(weight_bytes(Model("meta", meta, [](const at::Tensor& x) { return x; })), 2 * 4 * 15);
}

TEST(ChannelsLast, ConvertsConvolutionsOnlyAndKeepsOptimizersWorking) {
  const SmallNet net;
  const Model model = Model::of(net);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const at::Tensor before = net->conv->weight.detach().clone();
  EXPECT_EQ(to_channels_last(model), 1) << "a 1x1 convolution's weight is in both layouts at once";
  EXPECT_TRUE(net->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(net->fc->weight.is_contiguous());
  EXPECT_TRUE(torch::equal(before, net->conv->weight));
  EXPECT_EQ(to_channels_last(model), 0) << "a second call finds nothing to do";
  model(torch::randn({2, 3, 5, 5})).sum().backward();
  optimizer.step();
  EXPECT_FALSE(torch::equal(before, net->conv->weight));
}

}  // namespace bellows
