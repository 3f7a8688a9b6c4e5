#include "bellows/optim/averaging.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/optim/torch_golden.h"

namespace bellows::optim {

namespace {

constexpr int golden_updates = 6;

/// The net of tools/goldens/schedule.py.
Model golden_net() {
  torch::nn::Sequential net(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
  return Model("net", net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); });
}

void load_golden(const Model& model, const io::SafetensorsFile& file, int update) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : model.state_dict())
    tensors.emplace_back(name, file.tensor("model." + std::to_string(update) + "." + name));
  load_state_dict(model, tensors);
}

void expect_state(const NamedTensors& got, const io::SafetensorsFile& file, const std::string& prefix,
                  double tolerance = 0) {
  for (const auto& [name, tensor] : got) {
    if (tensor.scalar_type() == at::kLong && name != "n_averaged") continue;
    EXPECT_TRUE(torch::allclose(tensor, file.tensor(prefix + name), tolerance, tolerance)) << prefix << name;
  }
}

void expect_average(const std::string& kind, const AveragingOptions& options) {
  const auto file = open_golden("averaging.safetensors");
  const Model model = golden_net();
  AveragedModel average(model, options);
  for (int update = 0; update < golden_updates; ++update) {
    load_golden(model, file, update);
    average.update_parameters();
    expect_state(average.state_dict(), file, kind + "." + std::to_string(update) + ".");
  }
}

}  // namespace

TEST(Averaging, EqualsTorchsBitForBit) {
  expect_average("ema", {.weight = ema_weight(0.9)});
  expect_average("ema_buffers", {.weight = ema_weight(0.9), .buffers = AverageBuffers::average});
  expect_average("swa", {});
}

TEST(Averaging, BatchNormStatisticsEqualTorchs) {
  const auto file = open_golden("averaging.safetensors");
  const Model model = golden_net();
  AveragedModel average(model);
  for (int update = 0; update < golden_updates; ++update) {
    load_golden(model, file, update);
    average.update_parameters();
  }
  model.eval();
  const at::Tensor weight = model.parameters()[0].detach().clone();
  const NamedTensors buffers = model.named_buffers();
  const at::Tensor own_mean = buffers[0].second.clone();
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(file.tensor("batch." + std::to_string(i)));
  average.update_bn(inputs_of(batches));
  expect_state(average.state_dict(), file, "swa.bn.", 1e-6);
  EXPECT_EQ(average.averaged().back().second.item<int64_t>(), 3);  // num_batches_tracked
  EXPECT_TRUE(torch::equal(model.parameters()[0], weight));
  EXPECT_TRUE(torch::equal(model.named_buffers()[0].second, own_mean));
  EXPECT_FALSE(model.training());
}

TEST(Averaging, WarmupForgetsTheFirstModels) {
  const Schedule weight = ema_weight(0.999, /*warmup=*/true);
  EXPECT_DOUBLE_EQ(weight(1), 1 - 2.0 / 11);
  EXPECT_DOUBLE_EQ(weight(90), 1 - 0.91);
  EXPECT_DOUBLE_EQ(weight(1000000), 1 - 0.999);
}

TEST(Averaging, GuardLendsTheAverageToTheModel) {
  const Model model = golden_net();
  AveragedModel average(model);
  average.update_parameters();
  const at::Tensor p = model.parameters()[0], first = p.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    p.add_(2);
  }
  average.update_parameters();
  const at::Tensor second = p.detach().clone();
  try {
    const AveragedWeights weights(average);
    EXPECT_TRUE(torch::allclose(p, first + 1));
    EXPECT_TRUE(model.parameters()[0].is_same(p));
    throw std::runtime_error("evaluation failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(torch::equal(p, second));
  const Model copy = golden_net();
  average.copy_to(copy);
  EXPECT_TRUE(torch::allclose(copy.parameters()[0], first + 1));
}

TEST(Averaging, NarrowWeightsAreAveragedInFp32) {
  const Model model = golden_net();
  model.module()->to(at::kBFloat16);
  AveragedModel wide(model, {.weight = ema_weight(0.999)}),
      narrow(model, {.weight = ema_weight(0.999), .keep_dtype = true});
  const at::Tensor p = model.parameters()[0];
  const torch::NoGradGuard no_grad;
  p.fill_(1);
  wide.update_parameters();
  narrow.update_parameters();
  p.fill_(2);
  for (int i = 0; i < 100; ++i) {
    wide.update_parameters();
    narrow.update_parameters();
  }
  EXPECT_EQ(wide.averaged()[0].second.dtype(), at::kFloat);
  EXPECT_NEAR(wide.averaged()[0].second[0][0].item<double>(), 2 - std::pow(0.999, 100), 1e-4);
  EXPECT_EQ(narrow.averaged()[0].second[0][0].item<double>(), 1);  // as PyTorch's: a thousandth is lost each time
  const AveragedWeights weights(wide);
  EXPECT_NEAR(p[0][0].item<double>(), 1.0952, 0.01);
}

TEST(Averaging, GoesOnFromItsState) {
  const Model model = golden_net();
  AveragedModel whole(model, {.weight = ema_weight(0.5)});
  const auto train = [&] {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& p : model.parameters()) p.mul_(1.1);
  };
  for (int i = 0; i < 3; ++i, train()) whole.update_parameters();
  AveragedModel resumed(model, {.weight = ema_weight(0.5)});
  resumed.load_state_dict(whole.state_dict());
  EXPECT_EQ(resumed.n_averaged(), 3);
  whole.update_parameters();
  resumed.update_parameters();
  for (size_t i = 0; i < whole.averaged().size(); ++i)
    EXPECT_TRUE(torch::equal(whole.averaged()[i].second, resumed.averaged()[i].second));
}

TEST(Averaging, WrongUseIsRefused) {
  const Model model = golden_net();
  EXPECT_THROW(ema_weight(1.5), c10::ValueError);
  EXPECT_THROW(ema_weight(std::nan("")), c10::ValueError);
  EXPECT_THROW(AveragedModel(model, {.weight = nullptr}), c10::ValueError);
  torch::nn::Sequential nothing((torch::nn::ReLU()));
  const Model empty("empty", nothing.ptr(), [](const at::Tensor& x) { return x; });
  EXPECT_THROW(AveragedModel{empty}, c10::ValueError);
  AveragedModel too_much(model, {.weight = [](int64_t) { return 2.0; }});
  too_much.update_parameters();
  EXPECT_THROW(too_much.update_parameters(), c10::ValueError);
  EXPECT_EQ(too_much.n_averaged(), 1);
}

TEST(Averaging, StateOrModelOfAnotherShapeIsRefused) {
  const Model model = golden_net();
  AveragedModel average(model);
  average.update_parameters();
  NamedTensors state = average.state_dict();
  for (auto& item : state) item.second = item.second.clone();
  state[1].second = torch::zeros({3, 5});
  EXPECT_THROW(average.load_state_dict(state), c10::ValueError);
  state[1] = {"module.other", torch::zeros({4, 5})};
  EXPECT_THROW(average.load_state_dict(state), c10::ValueError);
  EXPECT_THROW(average.load_state_dict(model.state_dict()), c10::ValueError);
  EXPECT_THROW(average.load_state_dict({}), c10::ValueError);
  torch::nn::Sequential wider(torch::nn::Linear(6, 4));
  EXPECT_THROW(average.copy_to(Model("wider", wider.ptr(), [](const at::Tensor& x) { return x; })), c10::ValueError);
  model.module()->as<torch::nn::Sequential>()->ptr<torch::nn::LinearImpl>(0)->weight.set_data(torch::zeros({4, 6}));
  EXPECT_THROW(average.update_parameters(), c10::ValueError);
  EXPECT_THROW(AveragedWeights{average}, c10::ValueError);
  EXPECT_EQ(average.n_averaged(), 1);
}

TEST(UpdateBn, PutsEverythingBackWhenItFails) {
  const Model model = golden_net();
  model.eval();
  const auto norm =
      std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(model.module()->as<torch::nn::Sequential>()->ptr(1));
  ASSERT_TRUE(norm);
  norm->running_mean.fill_(3);
  std::vector<at::Tensor> none, wrong = {torch::zeros({2, 9})};
  EXPECT_THROW(update_bn(model, inputs_of(none)), c10::ValueError);
  EXPECT_EQ(norm->running_mean[0].item<float>(), 3);
  EXPECT_THROW(update_bn(model, nullptr), c10::ValueError);
  EXPECT_THROW(update_bn(model, inputs_of(wrong)), c10::Error);
  EXPECT_EQ(norm->options.momentum(), 0.1);
  EXPECT_FALSE(model.training());
  torch::nn::Sequential plain(torch::nn::Linear(2, 2));
  update_bn(Model("plain", plain.ptr(), nullptr), [] { return ADD_FAILURE() << "no batch is needed", at::Tensor(); });
}

}  // namespace bellows::optim
