#include "bellows/core/model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/channels_last.h"
#include "bellows/core/error.h"

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
