#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <sstream>

#include "bellows/models/blocks.h"
#include "bellows/models/registry.h"
#include "bellows/models/resnet.h"
#include "bellows/models/vision/alexnet.h"
#include "bellows/models/vision/auxiliary.h"
#include "bellows/models/vision/googlenet.h"
#include "bellows/models/vision/inception_v2.h"
#include "bellows/models/vision/inception_v3.h"
#include "bellows/models/vision/vgg.h"
#include "tests/models/golden.h"
#include "tests/support/errors.h"

namespace bellows::models {

namespace {

using VisionJson = nlohmann::ordered_json;

const VisionJson& vision_golden() {
  static const VisionJson golden = golden::read("vision.json");
  return golden;
}

enum class Dropout { off, on };

template <class Options>
Options vision_options(Dropout dropout, int64_t classes) {
  Options options;
  options.num_classes = classes;
  if constexpr (requires { options.hidden; }) options.hidden = vision_golden().at("hidden").get<int64_t>();
  if constexpr (requires { options.dropout; }) options.dropout = dropout == Dropout::on ? options.dropout : 0;
  if constexpr (requires { options.dropout_aux; }) options.dropout_aux = dropout == Dropout::on ? 0.7 : 0;
  return options;
}

using MakeVision = std::function<Model(Dropout, int64_t classes)>;

template <class Options>
MakeVision vision_maker(Model (*make)(const Options&)) {
  return [make](Dropout dropout, int64_t classes) { return make(vision_options<Options>(dropout, classes)); };
}

/// Creates the models of the golden, as small as there.
const std::map<std::string, MakeVision>& vision_makers() {
  static const std::map<std::string, MakeVision> makers = {
      {"alexnet", vision_maker(alexnet)},           {"vgg11", vision_maker(vgg11)},
      {"vgg11_bn", vision_maker(vgg11_bn)},         {"vgg13", vision_maker(vgg13)},
      {"vgg13_bn", vision_maker(vgg13_bn)},         {"vgg16", vision_maker(vgg16)},
      {"vgg16_bn", vision_maker(vgg16_bn)},         {"vgg19", vision_maker(vgg19)},
      {"vgg19_bn", vision_maker(vgg19_bn)},         {"googlenet", vision_maker(googlenet)},
      {"inception_v2", vision_maker(inception_v2)}, {"inception_v3", vision_maker(inception_v3)},
      {"resnet101", vision_maker(resnet101)},       {"resnet152", vision_maker(resnet152)}};
  return makers;
}

/// |difference| ≤ 1e-12 + 1e-8 · scale. Both programs run the same kernels in float64 and differ only where the order
/// of their sums differs; deep networks amplify these differences.
void expect_vision_value(double ours, const VisionJson& golden, double scale, const std::string& what) {
  EXPECT_LE(std::abs(ours - golden.get<double>()), 1e-12 + 1e-8 * scale)
      << what << ": " << ours << " vs " << golden.get<double>();
}

/// Compares a tensor with [sum, sum of absolute values, two samples].
void expect_vision_digest(const std::string& name, const at::Tensor& tensor, const VisionJson& golden) {
  ASSERT_TRUE(tensor.defined()) << name;
  const at::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous().flatten();
  const double magnitude = golden[1].get<double>(), mean = magnitude / static_cast<double>(flat.numel());
  expect_vision_value(flat.sum().item<double>(), golden[0], magnitude, name + " sum");
  expect_vision_value(flat.abs().sum().item<double>(), golden[1], magnitude, name + " sum of absolute values");
  const auto positions = formula_positions(name, flat.numel(), 2);
  for (size_t i = 0; i < positions.size(); ++i) {
    const double expected = golden[2 + i].get<double>();
    expect_vision_value(flat[positions[i]].item<double>(), golden[2 + i], std::max(std::abs(expected), mean),
                        name + "[" + std::to_string(positions[i]) + "]");
  }
}

void expect_vision_logits(const at::Tensor& logits, const VisionJson& golden, const std::string& what) {
  const at::Tensor flat = logits.detach().flatten();
  ASSERT_EQ(static_cast<size_t>(flat.numel()), golden.size()) << what;
  const double scale = flat.abs().max().item<double>();
  for (int64_t i = 0; i < flat.numel(); ++i)
    expect_vision_value(flat[i].item<double>(), golden[static_cast<size_t>(i)], scale, what);
}

struct VisionBatch {
  at::Tensor images, labels;
};

VisionBatch vision_batch(const VisionJson& golden) {
  const int64_t size = golden.at("size").get<int64_t>(), batch = vision_golden().at("batch").get<int64_t>();
  return {formula_uniform("input", {batch, 3, size, size}),
          formula_labels("labels", batch, vision_golden().at("classes").get<int64_t>())};
}

/// Name and sizes of tensors, in torchvision's order: parameters, then buffers.
struct VisionState {
  std::vector<std::string> parameters, buffers;
};

VisionState state_of(const Model& model) {
  VisionState state;
  for (const auto& [name, tensor] : model.named_parameters())
    state.parameters.push_back(name + " " + c10::Join("x", tensor.sizes()));
  for (const auto& [name, tensor] : model.named_buffers())
    state.buffers.push_back(name + " " + c10::Join("x", tensor.sizes()));
  return state;
}

VisionState state_of(const VisionJson& entries) {
  VisionState state;
  for (const VisionJson& entry : entries) {
    std::istringstream words(entry.get<std::string>());
    std::string name, sizes, channels;
    words >> name >> sizes >> channels;
    if (sizes != "batch_norm") {
      state.parameters.push_back(name + " " + sizes);
      continue;
    }
    for (const char* part : {".weight ", ".bias "}) state.parameters.push_back(name + part + channels);
    for (const char* part : {".running_mean ", ".running_var "}) state.buffers.push_back(name + part + channels);
    state.buffers.push_back(name + ".num_batches_tracked ");
  }
  return state;
}

void expect_state(const Model& model, const VisionJson& golden) {
  const VisionState ours = state_of(model), theirs = state_of(golden);
  EXPECT_EQ(ours.parameters, theirs.parameters) << model.name();
  EXPECT_EQ(ours.buffers, theirs.buffers) << model.name();
}

class VisionGolden : public testing::TestWithParam<std::string> {
 protected:
  const VisionJson& golden() const { return vision_golden().at("models").at(GetParam()); }
  Model make(Dropout dropout) const {
    return vision_makers().at(GetParam())(dropout, vision_golden().at("classes").get<int64_t>());
  }
};

}  // namespace

/// All outputs, the loss with auxiliary outputs, the gradients and the running statistics of one step in float64.
TEST_P(VisionGolden, StepEqualsPython) {
  const Model model = make(Dropout::off);
  set_formula_weights(model);
  model.to(torch::kFloat64);
  model.train();
  const auto [images, labels] = vision_batch(golden());
  const std::vector<at::Tensor> outputs = model.forward_all({images});
  ASSERT_EQ(outputs.size(), golden().at("outputs").size());
  EXPECT_EQ(model.outputs().size(), outputs.size());
  at::Tensor loss = torch::cross_entropy_loss(outputs[0], labels);
  for (size_t i = 0; i < outputs.size(); ++i) {
    expect_vision_logits(outputs[i], golden().at("outputs")[i], "output " + std::to_string(i));
    if (i > 0) loss = loss + auxiliary_weight(model) * torch::cross_entropy_loss(outputs[i], labels);
  }
  expect_vision_value(loss.item<double>(), golden().at("loss"), 1, "loss");
  loss.backward();
  size_t index = 0;
  for (const auto& [name, parameter] : model.named_parameters())
    expect_vision_digest(name, parameter.grad(), golden().at("gradients").at(index++));
  index = 0;
  for (const auto& [name, buffer] : model.named_buffers()) {
    if (buffer.dim() == 1) expect_vision_digest(name, buffer, golden().at("running_statistics").at(index++));
  }
  model.eval();
  EXPECT_EQ(model.outputs().size(), 1u);
  expect_vision_logits(model.forward(images), golden().at("eval"), "logits in eval mode");
}

TEST_P(VisionGolden, NamesShapesAndOrderAreTorchvisions) {
  expect_state(vision_makers().at(GetParam())(Dropout::on, 1000), golden().at("state_dict"));
}

// The modules draw random numbers in torchvision's order, also where the constructors' values are replaced.
TEST_P(VisionGolden, SeedGivesTorchvisionsWeights) {
  torch::manual_seed(0);
  const NamedTensors parameters = make(Dropout::on).named_parameters();
  ASSERT_EQ(parameters.size(), golden().at("initial").size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double sum = parameters[i].second.detach().to(torch::kFloat64).abs().sum().item<double>();
    const double expected = golden().at("initial")[i].get<double>();
    EXPECT_NEAR(sum, expected, 1e-6 * expected) << parameters[i].first;
  }
}

// Checkpointing runs blocks through a callback, which must see all of them.
TEST_P(VisionGolden, BlocksCoverTheModel) {
  const Model model = make(Dropout::on);
  set_formula_weights(model);
  model.eval();
  const torch::NoGradGuard no_grad;
  const int64_t size = GetParam() == "inception_v3" ? 75 : 64;
  const at::Tensor images = formula_uniform("input", {1, 3, size, size}).to(torch::kFloat32);
  const at::Tensor expected = model.forward(images);
  int64_t calls = 0;
  const int64_t blocks = run_blocks_by(model, [&](const Block& block, const at::Tensor& x) {
    ++calls;
    return block(x);
  });
  EXPECT_GE(blocks, 3);
  EXPECT_TRUE(torch::equal(model.forward(images), expected));
  EXPECT_EQ(calls, blocks);
}

INSTANTIATE_TEST_SUITE_P(Models, VisionGolden,
                         testing::Values("alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn",
                                         "vgg16_bn", "vgg19_bn", "googlenet", "inception_v2", "inception_v3",
                                         "resnet101", "resnet152"),
                         [](const auto& test) { return test.param; });

TEST(VisionModels, DefaultOptionsAreTorchvisionsSizes) {
  expect_state(alexnet(), vision_golden().at("full").at("alexnet"));
  expect_state(vgg16(), vision_golden().at("full").at("vgg16"));
}

// With the option, images normalized for ImageNet give the result of images with mean and standard deviation 0.5.
TEST(VisionModels, TransformsItsInput) {
  // The golden's running statistics are those of images that are not transformed.
  const auto with_option = [&](const std::string& name, const Model& plain, const Model& transforming) {
    const VisionJson& golden = vision_golden().at("models").at(name);
    set_formula_weights(plain);
    plain.to(torch::kFloat64);
    const auto [images, labels] = vision_batch(golden);
    plain.forward_all({images});
    transforming.to(torch::kFloat64);
    load_state_dict(transforming, plain.state_dict());
    transforming.eval();
    expect_vision_logits(transforming.forward(images), golden.at("eval_transformed"), name);
  };
  with_option("googlenet", googlenet({.num_classes = 10}), googlenet({.num_classes = 10, .transform_input = true}));
  with_option("inception_v3", inception_v3({.num_classes = 10}),
              inception_v3({.num_classes = 10, .transform_input = true}));
}

TEST(VisionModels, AuxiliaryOutputsAreOptional) {
  const Model model = googlenet({.num_classes = 7, .in_channels = 1, .aux_logits = false});
  EXPECT_EQ(auxiliary_weight(model), 0);
  EXPECT_EQ(model.outputs(), (std::vector<std::string>{"logits"}));
  EXPECT_EQ(model.forward_all({torch::zeros({2, 1, 32, 32})}).size(), 1u);
  for (const auto& [name, tensor] : model.named_parameters()) EXPECT_FALSE(name.starts_with("aux")) << name;
  EXPECT_EQ(inception_v3({.num_classes = 3, .aux_logits = false}).forward(torch::zeros({2, 3, 75, 75})).sizes(),
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(auxiliary_weight(googlenet({.num_classes = 2})), 0.3);
  EXPECT_EQ(auxiliary_weight(inception_v3({.num_classes = 2})), 0.4);
  EXPECT_EQ(auxiliary_weight(resnet18({.num_classes = 2})), 0);
}

TEST(VisionModels, DropoutIsRandomOnlyInTraining) {
  const at::Tensor images = formula_uniform("input", {2, 3, 64, 64}).to(torch::kFloat32);
  for (const char* name : {"alexnet", "vgg11", "googlenet", "inception_v2"}) {
    const Model model = vision_makers().at(name)(Dropout::on, 10);
    set_formula_weights(model);
    const torch::NoGradGuard no_grad;
    model.train();
    EXPECT_FALSE(torch::equal(model.forward(images), model.forward(images))) << name;
    model.eval();
    EXPECT_TRUE(torch::equal(model.forward(images), model.forward(images))) << name;
  }
}

TEST(VisionModels, BadOptionsAndImagesAreNamed) {
  using testing::HasSubstr;
  EXPECT_THAT(message_of([] { vgg11({.num_classes = 0}); }), HasSubstr("vgg11: expected num_classes from 1"));
  EXPECT_THAT(message_of([] { alexnet({.dropout = 1}); }), HasSubstr("alexnet: expected dropout in [0, 1), got 1"));
  EXPECT_THAT(message_of([] { googlenet({.in_channels = 1, .transform_input = true}); }),
              HasSubstr("googlenet: expected three input channels with transform_input, got 1"));
  EXPECT_THAT(message_of([] {
                vgg11({.num_classes = 2, .hidden = 2}).forward(torch::zeros({1, 3, 31, 32}));
              }),
              HasSubstr("vgg11: expected images [N, 3, H, W] of at least 32 x 32, got [1, 3, 31, 32]"));
  const Model v3 = inception_v3({.num_classes = 2});
  EXPECT_THAT(message_of([&] {
                v3.forward(torch::zeros({2, 3, 128, 128}));
              }),
              HasSubstr("auxiliary output: expected images [N, 3, H, W] of at least 299 x 299, got [2, 3, 128, 128]"));
  EXPECT_THAT(message_of([&] { v3.forward(torch::zeros({1, 3, 299, 299})); }), HasSubstr("at least two images"));
}

}  // namespace bellows::models
