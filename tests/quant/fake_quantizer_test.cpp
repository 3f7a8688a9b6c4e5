// Quantization-aware training: layers of any model compute with fake-quantized weights and inputs.
#include "bellows/quant/training/fake_quantizer.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/quant/quantize.h"
#include "bellows/quant/training/batch_norm_freeze.h"
#include "tests/quant/networks.h"
#include "tests/quant/support.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::quant {
namespace {

using samples::batches_of;
using samples::layer;
using samples::model_of;
using samples::plain;
using samples::Small;
using samples::Tied;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor fake(const at::Tensor& x, double low, double high) {
  const Parameters parameters = choose_parameters(torch::tensor(low), torch::tensor(high), Scheme{});
  return at::fake_quantize_per_tensor_affine(x, parameters.scale.item<double>(), parameters.zero_point.item<int>(), 0,
                                             255);
}

at::Tensor fake_weight(const at::Tensor& weight) {
  const Parameters parameters = choose_parameters(weight.detach(), weight_scheme());
  return at::fake_quantize_per_channel_affine(weight, parameters.scale, parameters.zero_point, 0, -128, 127);
}

/// A model of some kind of layer, in training mode.
template <class Holder>
Model training(const Holder& net) {
  const Model model = model_of(net);
  model.train();
  return model;
}

/// The result and gradients of the operators, computed by hand.
void expect_like(const Model& model, const at::Tensor& weight, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)>& layer, double low) {
  const FakeQuantizer quantizer(model);
  const at::Tensor given = x.clone().requires_grad_();
  at::Tensor y;
  {
    const FakeQuantizerGuard guard(quantizer);
    y = model.forward(given);
  }
  y.sin().sum().backward();
  const at::Tensor input = x.clone().requires_grad_(), own = weight.detach().clone().requires_grad_();
  const at::Tensor expected = layer(fake(input, low, x.max().item<double>()), fake_weight(own));
  expected.sin().sum().backward();
  EXPECT_TRUE(y.equal(expected));
  EXPECT_TRUE(given.grad().equal(input.grad()));
  EXPECT_TRUE(weight.grad().equal(own.grad()));
  EXPECT_FALSE(y.equal(model.forward(x))) << "without the guard, the layer is not quantized";
}

TEST(FakeQuantizer, LinearsComputeWithFakeQuantizedTensors) {
  torch::manual_seed(1);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6, 20}, {3, 4, 20}}) {
    const torch::nn::Linear net(20, 7);
    const at::Tensor x = torch::randn(shape);
    expect_like(
        training(net), net->weight, x,
        [&](const at::Tensor& in, const at::Tensor& w) {
          return torch::nn::functional::linear(in, w, net->bias.detach());
        },
        x.min().item<double>());
  }
}

// Inputs that are never negative are uint8, others are symmetric around the zero point 128.
TEST(FakeQuantizer, ConvolutionsComputeWithFakeQuantizedTensors) {
  torch::manual_seed(2);
  torch::nn::Conv2d net(torch::nn::Conv2dOptions(4, 6, 3).padding(1).stride(2).groups(2));
  const auto layer = [&](const at::Tensor& in, const at::Tensor& w) {
    return at::conv2d(in, w, net->bias.detach(), {2, 2}, {1, 1}, {1, 1}, 2);
  };
  expect_like(training(net), net->weight, torch::rand({2, 4, 7, 7}), layer, 0);
  net->zero_grad();
  const at::Tensor x = torch::rand({2, 4, 7, 7}) - 0.25;
  const at::Tensor largest = x.abs().max();
  const Model model = training(net);
  const FakeQuantizer quantizer(model);
  const FakeQuantizerGuard guard(quantizer);
  const double scale = (largest / 127.5).item<float>();
  const at::Tensor input = at::fake_quantize_per_tensor_affine(x, scale, 128, 0, 255);
  EXPECT_TRUE(model.forward(x).equal(layer(input, fake_weight(net->weight))));
}

TEST(FakeQuantizer, AllKindsOfConvolutionsAndMatmuls) {
  torch::manual_seed(3);
  const at::Tensor x = torch::rand({2, 3, 6, 6, 6});
  const auto changes = [](const auto& net, const at::Tensor& input) {
    const Model model = training(net);
    const at::Tensor before = plain(model, input);
    const FakeQuantizer quantizer(model);
    const FakeQuantizerGuard guard(quantizer);
    return !plain(model, input).equal(before);
  };
  EXPECT_TRUE(changes(torch::nn::Conv1d(3, 4, 3), x[0][0].unsqueeze(0).narrow(1, 0, 3).flatten(2)));
  EXPECT_TRUE(
      changes(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(torch::kSame)), x[0].transpose(0, 1)));
  EXPECT_TRUE(changes(torch::nn::Conv3d(3, 4, 3), x));
  EXPECT_TRUE(changes(torch::nn::Linear(torch::nn::LinearOptions(6, 4).bias(false)), x));
  EXPECT_FALSE(changes(torch::nn::ConvTranspose2d(3, 4, 3), x[0].transpose(0, 1))) << "as in quantize()";
}

TEST(FakeQuantizer, RangesAreMovingAveragesOfTrainingBatches) {
  const torch::nn::Linear net(torch::nn::LinearOptions(4, 3).bias(false));
  const Model model = training(net);
  const FakeQuantizer quantizer(model, {.averaging_constant = 0.25});
  const auto run = [&](double low, double high) {
    const FakeQuantizerGuard guard(quantizer);
    return model.forward(torch::tensor({{low, 0., 0., high}}));
  };
  run(-1, 3);
  run(-2, 7);
  const auto bounds = [&] { return quantizer.trained_layers().at("weight").input_range; };
  EXPECT_TRUE(bounds().equal(torch::tensor({-1.25F, 4.F})));
  model.eval();
  const at::Tensor y = run(-100, 100);
  EXPECT_TRUE(bounds().equal(torch::tensor({-1.25F, 4.F}))) << "evaluation does not change ranges";
  EXPECT_TRUE(y.equal(
      at::linear(fake(torch::tensor({{-100., 0., 0., 100.}}).to(at::kFloat), -1.25, 4), fake_weight(net->weight))));
}

TEST(FakeQuantizer, LayersWithoutARangeStayInFloatingPointInEvaluation) {
  const torch::nn::Linear net(8, 3);
  const Model model = model_of(net);
  const at::Tensor x = torch::randn({2, 8}), expected = plain(model, x);
  const FakeQuantizer quantizer(model);
  const FakeQuantizerGuard guard(quantizer);
  EXPECT_TRUE(plain(model, x).equal(expected));
  EXPECT_TRUE(quantizer.trained_layers().empty());
}

TEST(FakeQuantizer, WeightsThatOtherOperatorsReadStayInFloatingPoint) {
  const Tied net;
  const Model model = training(net);
  const FakeQuantizer quantizer(model, {.skip = {"s*l"}});
  {
    const FakeQuantizerGuard guard(quantizer);
    model.forward(torch::arange(6));
  }
  std::vector<std::string> names;
  for (const auto& [name, layer] : quantizer.trained_layers()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("inner", "odd", "up")) << "words is an embedding, too, and small is skipped";
}

/// Some steps of training, with or without learned steps.
struct Course {
  explicit Course(bool learned) : quantizer(training(net), {.averaging_constant = 0.1, .learned_steps = learned}) {
    std::vector<at::Tensor> parameters = net->parameters();
    const std::vector<at::Tensor> steps = quantizer.learned_steps();
    parameters.insert(parameters.end(), steps.begin(), steps.end());
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05));
  }
  std::vector<double> losses(int first, int steps) {
    std::vector<double> all;
    for (int i = first; i < first + steps; ++i) {
      torch::manual_seed(100 + i);
      const at::Tensor x = torch::randn({16, 3, 12, 12}), target = x.mean({2, 3}).argmax(1);
      const FakeQuantizerGuard guard(quantizer);
      const at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), target);
      optimizer->zero_grad();
      loss.backward();
      optimizer->step();
      all.push_back(loss.item<double>());
    }
    return all;
  }
  Small net;
  FakeQuantizer quantizer;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

TEST(FakeQuantizer, ResumesWithIdenticalBits) {
  for (const bool learned : {false, true}) {
    SCOPED_TRACE(learned ? "learned steps" : "moving average");
    Course whole(learned), first(learned), second(learned);
    const std::vector<double> expected = whole.losses(0, 6);
    first.losses(0, 3);
    second.losses(50, 1);  // whose state is replaced
    load_state_dict(second.quantizer.model(), first.quantizer.model().state_dict());
    second.quantizer.load_state(first.quantizer.state());
    const std::vector<double> got = second.losses(3, 3);
    EXPECT_THAT(got, ElementsAre(expected[3], expected[4], expected[5]));
    const NamedTensors a = whole.quantizer.state(), b = second.quantizer.state();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].first, b[i].first);
      EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
    }
  }
}

TEST(FakeQuantizer, LearnedStepsFollowTheGradientOfPyTorch) {
  torch::manual_seed(4);
  const torch::nn::Linear net(torch::nn::LinearOptions(20, 7).bias(false));
  const Model model = training(net);
  const FakeQuantizer quantizer(model, {.learned_steps = true});
  const std::vector<at::Tensor> steps = quantizer.learned_steps();
  ASSERT_EQ(steps.size(), 2);
  const at::Tensor x = torch::randn({6, 20});
  {
    const FakeQuantizerGuard guard(quantizer);
    model.forward(x).sin().sum().backward();
  }
  const Parameters input = choose_parameters(x, Scheme{}),
                   weight = choose_parameters(net->weight.detach(), weight_scheme());
  EXPECT_TRUE(steps[0].equal(weight.scale)) << "steps start from the ranges";
  EXPECT_TRUE(steps[1].equal(input.scale.view({1})));
  const at::Tensor x_step = input.scale.view({1}).clone().requires_grad_();
  const at::Tensor w_step = weight.scale.clone().requires_grad_(), own = net->weight.detach().clone().requires_grad_();
  const at::Tensor y =
      at::linear(at::_fake_quantize_learnable_per_tensor_affine(x, x_step, input.zero_point.view({1}).to(at::kFloat), 0,
                                                                255, 1 / std::sqrt(255. * 120)),
                 at::_fake_quantize_learnable_per_channel_affine(own, w_step, torch::zeros({7}), 0, -128, 127,
                                                                 1 / std::sqrt(127. * 20)));
  y.sin().sum().backward();
  EXPECT_TRUE(at::allclose(steps[0].grad(), w_step.grad(), 1e-5, 1e-8));
  EXPECT_TRUE(at::allclose(steps[1].grad(), x_step.grad(), 1e-5, 1e-8));
  EXPECT_TRUE(at::allclose(net->weight.grad(), own.grad(), 1e-5, 1e-7));
  EXPECT_GT(steps[0].grad().abs().min().item<float>(), 0);
}

// ---- the quantized model

/// Integers of a weight that training computes with, from what reaches the operator.
at::Tensor integers(const at::Tensor& weight, const Parameters& parameters) {
  std::vector<int64_t> channel(weight.dim(), 1);
  channel[0] = -1;
  return at::round(weight.detach() * parameters.scale.reciprocal().view(channel)).clamp(-128, 127).to(at::kChar);
}

TEST(FakeQuantizer, QuantizedModelsComputeWithTheTrainedIntegers) {
  for (const bool learned : {false, true}) {
    SCOPED_TRACE(learned ? "learned steps" : "moving average");
    Course course(learned);
    course.losses(0, 5);
    const Model& model = course.quantizer.model();
    model.eval();
    const TrainedLayers trained = course.quantizer.trained_layers();
    const at::Tensor x = torch::randn({4, 3, 12, 12});
    at::Tensor fake_quantized;
    {
      const FakeQuantizerGuard guard(course.quantizer);
      fake_quantized = plain(model, x);
    }
    const Quantized made = quantize(model, {.trained = trained}, std::vector<std::vector<at::Tensor>>{{x}});
    EXPECT_EQ(made.layers->size(), 3);
    EXPECT_EQ(layer(made, "first").norm, "norm") << "a norm multiplies the scales, so it can be folded";
    for (const auto& [name, weight] : {std::pair{"first", course.net->first->weight},
                                       {"second", course.net->second->weight},
                                       {"last", course.net->last->weight}}) {
      const Parameters parameters = weight_parameters(trained.at(name), weight);
      EXPECT_TRUE(layer(made, name).weight.values.equal(integers(weight, parameters))) << name;
      const LayerInput input = quantized_input(name, trained.at(name), layer(made, name).kind);
      EXPECT_TRUE(layer(made, name).input.scale.equal(input.parameters.scale)) << name;
      EXPECT_TRUE(layer(made, name).input.zero_point.equal(input.parameters.zero_point)) << name;
    }
    EXPECT_TRUE(layer(made, "first").input_is_signed);
    EXPECT_FALSE(layer(made, "second").input_is_signed) << "behind ReLU";
    const double distance =
        ((made.model.forward(x) - fake_quantized).abs().max() / fake_quantized.abs().max()).item<double>();
    EXPECT_LT(distance, 1e-2) << "sums are rounded in another order, so an input can be rounded to the next integer";
  }
}

// Only one layer, so that no rounding follows another.
TEST(FakeQuantizer, QuantizedLayerEqualsTheFakeQuantizedOne) {
  torch::manual_seed(5);
  const auto expect_equal = [](const auto& net, const at::Tensor& x) {
    const Model model = training(net);
    const FakeQuantizer quantizer(model);
    {
      const FakeQuantizerGuard guard(quantizer);
      model.forward(x);
    }
    model.eval();
    at::Tensor expected;
    {
      const FakeQuantizerGuard guard(quantizer);
      expected = plain(model, 1.5 * x);
    }
    const Quantized made =
        quantize(model, {.trained = quantizer.trained_layers()}, std::vector<std::vector<at::Tensor>>{{x}});
    EXPECT_LT(((made.model.forward(1.5 * x) - expected).abs().max() / expected.abs().max()).template item<double>(),
              2e-6);
  };
  expect_equal(torch::nn::Linear(40, 12), torch::randn({5, 40}) + 1);
  expect_equal(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)), torch::rand({2, 3, 9, 9}));
  expect_equal(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)), torch::rand({2, 3, 9, 9}) - 0.3);
}

TEST(FakeQuantizer, NormsWithNegativeFactorsAreNotFolded) {
  Course course(false);
  {
    const torch::NoGradGuard no_gradients;
    course.net->norm->weight[3] = -0.5;
  }
  course.losses(0, 2);
  const Quantized made = quantize(course.quantizer.model(), {.trained = course.quantizer.trained_layers()},
                                  std::vector<std::vector<at::Tensor>>{{torch::randn({4, 3, 12, 12})}});
  EXPECT_EQ(layer(made, "first").norm, "");
}

// ---- torch.ao

/// The nets of tools/goldens/quant_training.py.
struct GoldenNetImpl : torch::nn::Module {
  explicit GoldenNetImpl(bool norms) : has_norms(norms) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(!norms)));
    if (norms) {
      norm = register_module("norm", torch::nn::BatchNorm2d(8));
      other = register_module("other", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 12, 3).stride(2).bias(false)));
      other_norm = register_module("other_norm", torch::nn::BatchNorm2d(12));
    } else {
      inner = register_module("inner", torch::nn::Linear(8 * 36, 16));
    }
    fc = register_module("fc", torch::nn::Linear(norms ? 12 * 4 : 16, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (!has_norms) return fc(torch::tanh(inner(torch::relu(conv(x)).flatten(1))));
    return fc(torch::relu(other_norm(other(torch::relu(norm(conv(x)))))).flatten(1));
  }
  bool has_norms;
  torch::nn::Conv2d conv{nullptr}, other{nullptr};
  torch::nn::BatchNorm2d norm{nullptr}, other_norm{nullptr};
  torch::nn::Linear inner{nullptr}, fc{nullptr};
};
TORCH_MODULE(GoldenNet);

/// The losses of ten steps from torch.ao's initial weights.
at::Tensor golden_losses(const Golden& golden, bool norms, FakeQuantizer& quantizer, GoldenNet& net,
                         int frozen_after = 6) {
  {
    const torch::NoGradGuard no_gradients;
    for (auto& item : net->named_parameters()) item.value().copy_(golden((norms ? "norms." : "plain.") + item.key()));
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 10; ++i) {
    const FakeQuantizerGuard guard(quantizer);
    std::optional<BatchNormFreezeGuard> frozen;
    if (i >= frozen_after) frozen.emplace(quantizer.model());
    const at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(golden("x")[i]), golden("target")[i]);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    losses.push_back(loss.detach());
  }
  return torch::stack(losses);
}

void expect_trajectory(bool norms, double rtol) {
  const Golden golden("quant/training.safetensors");
  GoldenNet net(norms);
  FakeQuantizer quantizer(training(net));
  const std::string prefix = norms ? "norms." : "plain.";
  const at::Tensor got = golden_losses(golden, norms, quantizer, net), expected = golden(prefix + "losses");
  EXPECT_TRUE(at::allclose(got, expected, rtol, 0)) << at::stack({got, expected}) << (got / expected - 1).abs().max();
  const TrainedLayers trained = quantizer.trained_layers();
  const std::vector<std::string> names =
      norms ? std::vector<std::string>{"conv", "other", "fc"} : std::vector<std::string>{"conv", "inner", "fc"};
  for (size_t i = 0; i < names.size(); ++i) {
    const LayerKind kind =
        net->named_modules()[names[i]]->as<torch::nn::Linear>() ? LayerKind::linear : LayerKind::convolution;
    const double step = input_parameters(trained.at(names[i]), kind).scale.item<double>();
    EXPECT_NEAR(step, golden(prefix + "step")[static_cast<int64_t>(i)].item<double>(), 10 * rtol * step) << names[i];
  }
}

/// The largest relative distance of the losses from torch.ao's, if something differs from torch.ao.
double distance_of(bool norms, const FakeQuantizerOptions& options, int frozen_after) {
  const Golden golden("quant/training.safetensors");
  GoldenNet net(norms);
  FakeQuantizer quantizer(training(net), options);
  const at::Tensor got = golden_losses(golden, norms, quantizer, net, frozen_after);
  return (got / golden((norms ? "norms." : "plain.") + std::string("losses")) - 1).abs().max().item<double>();
}

TEST(FakeQuantizer, LossesFollowTorchAo) {
  // A value close to a border between integers may be rounded to the other side: 1.1e-4 with AVX2 on AMD.
  expect_trajectory(/*norms=*/false, 2e-4);
  EXPECT_GT(distance_of(false, {.skip = {"*"}}, 6), 4e-4) << "without quantization";
}

// torch.ao scales the weight by the norm before it is quantized. With one scale per channel, both ways give the same
// integers, except for ties: the largest weight of each channel lies between two integers.
TEST(FakeQuantizer, LossesFollowTorchAoWithFoldedAndFrozenNorms) {
  expect_trajectory(/*norms=*/true, 5e-3);
  EXPECT_GT(distance_of(true, {}, 10), 0.1) << "with norms that are not frozen";
}

TEST(FakeQuantizer, FrozenNormsKeepTheirStatisticsAndLearn) {
  const torch::nn::BatchNorm2d net(4);
  const Model model = training(net);
  const at::Tensor x = torch::randn({3, 4, 5, 5}) + 2, mean = net->running_mean.clone();
  {
    const BatchNormFreezeGuard guard(model);
    const at::Tensor y = model.forward(x);
    EXPECT_TRUE(at::allclose(y, x, 1e-4)) << "running statistics are 0 and 1";
    y.square().sum().backward();
  }
  EXPECT_TRUE(net->running_mean.equal(mean));
  EXPECT_GT(net->weight.grad().abs().min().item<float>(), 0);
  model.forward(x);
  EXPECT_FALSE(net->running_mean.equal(mean)) << "the guard has ended";
}

TEST(FakeQuantizer, BadInput) {
  const Small net;
  const Model model = training(net);
  const auto error = [&](const FakeQuantizerOptions& options) {
    return message_of([&] { const FakeQuantizer quantizer(model, options); });
  };
  EXPECT_THAT(error({.averaging_constant = 0}), HasSubstr("expected an averaging_constant in (0, 1], got 0"));
  EXPECT_THAT(error({.skip = {"frst"}}), HasSubstr("no layer has the name \"frst\". Did you mean \"first\"?"));
  const torch::nn::BatchNorm2d none(3);
  EXPECT_THAT(message_of([&] { const FakeQuantizer quantizer(training(none)); }),
              HasSubstr("no parameter that can be the weight"));
  FakeQuantizer quantizer(model);
  EXPECT_THAT(message_of([&] {
                quantizer.load_state({{"frst.input_range", torch::zeros({2})}});
              }),
              HasSubstr("has no such layer"));
  EXPECT_THAT(message_of([&] {
                quantizer.load_state({{"first.input_range", torch::zeros({3})}});
              }),
              HasSubstr("expected \"first.input_range\" of shape [2], got [3]"));
  const auto batches = batches_of({2, 3, 12, 12});
  EXPECT_THAT(message_of([&] {
                quantize(model, {.method = Method::dynamic, .trained = {{"first", {}}}}, batches);
              }),
              HasSubstr("`trained` needs the method static"));
  const TrainedLayers broken{{"last", {.input_range = torch::full({2}, NAN)}}};
  EXPECT_THAT(message_of([&] { quantize(model, {.trained = broken}, batches); }),
              HasSubstr("the trained range of the inputs of \"last\" is NaN or infinite"));
}

// As with ZeRO.
TEST(FakeQuantizer, FindsWeightsThatArePartsOfOneBuffer) {
  torch::manual_seed(14);
  torch::nn::Sequential net(torch::nn::Linear(20, 7), torch::nn::ReLU(), torch::nn::Linear(7, 3));
  const at::Tensor x = torch::randn({6, 20});
  const auto result = [&] {
    const Model model = training(net);
    const FakeQuantizer quantizer(model);
    const FakeQuantizerGuard guard(quantizer);
    const at::Tensor y = model.forward(x);
    EXPECT_EQ(quantizer.trained_layers().size(), 2u);
    return y;
  };
  const at::Tensor separate = result();
  const at::Tensor flat = torch::empty({20 * 7 + 7 + 7 * 3 + 3});
  int64_t offset = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    const at::Tensor part = flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    part.copy_(parameter.detach());
    parameter.set_data(part);
    offset += parameter.numel();
  }
  EXPECT_TRUE(result().equal(separate));
}

// Two ranks, whose exchange the test imitates.
TEST(FakeQuantizer, CombinesTheRangesOfRanks) {
  torch::manual_seed(12);
  const torch::nn::Linear net(20, 7);
  const Model model = training(net);
  const FakeQuantizer whole(model), first(model), second(model);
  const auto observe = [&](const FakeQuantizer& quantizer, const at::Tensor& x) {
    const FakeQuantizerGuard guard(quantizer);
    model.forward(x);
  };
  // Each rank contributes [−low, high] of its layers.
  const auto exchange = [](FakeQuantizer a, FakeQuantizer b) {
    at::Tensor of_b;
    b.combine_ranges([&](const at::Tensor& own) { return of_b = own.clone(); });
    a.combine_ranges([&](const at::Tensor& own) { return at::maximum(own, of_b); });
  };
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = torch::randn({6, 20});
    observe(whole, x);
    observe(first, x.slice(0, 0, 2));
    observe(second, x.slice(0, 2, 6));
    exchange(first, second);
    EXPECT_TRUE(
        first.trained_layers().begin()->second.input_range.equal(whole.trained_layers().begin()->second.input_range))
        << "step " << step;
    FakeQuantizer(second).load_state(first.state());
  }
}

TEST(FakeQuantizer, RanksWithoutInputsKeepTheRangesOfOthers) {
  torch::manual_seed(13);
  const Model model = training(torch::nn::Linear(20, 7));
  FakeQuantizer idle(model);
  EXPECT_TRUE(idle.trained_layers().empty());
  const at::Tensor of_others = torch::tensor({{2.0F, 3.0F}});  // the range from −2 to 3
  at::Tensor own;
  idle.combine_ranges([&](const at::Tensor& bounds) {
    own = bounds;
    return at::maximum(bounds, of_others);
  });
  EXPECT_TRUE(own.isinf().all().item<bool>());
  ASSERT_EQ(idle.trained_layers().size(), 1u);
  EXPECT_TRUE(idle.trained_layers().begin()->second.input_range.equal(torch::tensor({-2.0F, 3.0F})));
  idle.combine_ranges([](const at::Tensor& bounds) { return bounds; });
  EXPECT_TRUE(idle.trained_layers().begin()->second.input_range.equal(torch::tensor({-2.0F, 3.0F})))
      << "a step without inputs on any rank";
  FakeQuantizer learned(model, {.learned_steps = true});
  EXPECT_THAT(message_of([&] { learned.combine_ranges([](const at::Tensor& bounds) { return bounds; }); }),
              HasSubstr("works only without the option `learned_steps`"));
}

}  // namespace
}  // namespace bellows::quant
