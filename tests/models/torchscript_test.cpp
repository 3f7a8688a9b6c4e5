#include "bellows/models/torchscript.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>

#include "bellows/amp/policy.h"
#include "bellows/core/channels_last.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/resnet.h"
#include "bellows/models/summary.h"
#include "bellows/system/file.h"
#include "tests/models/golden.h"
#include "tests/support/errors.h"

namespace bellows::models {

namespace {

using testing::HasSubstr;

const std::string script_path = golden::path("digits_resnet_w2_script.pt");

class TorchScriptModel : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              c10::str("torchscript_", getpid(), "_", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  /// A program of one layer with the given forward.
  std::string program(const std::string& forward) const {
    torch::jit::Module module("Net");
    module.register_parameter("weight", torch::ones({3, 4}, torch::requires_grad()), /*is_buffer=*/false);
    module.define(forward);
    module.save(file("net.pt"));
    return file("net.pt");
  }

  std::filesystem::path folder_;
};

/// The same network as torch::nn modules, with the same weights.
Model twin() {
  const Model model = digits_resnet({.width = 2});
  load_state_dict(model, io::load_tensors(golden::path("digits_resnet_w2.pt")));
  model.train();
  return model;
}

std::vector<double> losses_of_training(const Model& model, int steps) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<double> losses;
  model.train();
  for (int i = 0; i < steps; ++i) {
    const at::Tensor x = formula_uniform(c10::str("input", i), {16, 1, 8, 8}).to(torch::kFloat32);
    const at::Tensor loss = torch::nn::functional::cross_entropy(model.forward(x), formula_labels("labels", 16, 10));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

std::map<std::string, at::Tensor> by_name(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace

TEST_F(TorchScriptModel, TrainsToTheSameBitsAsTheModulesThatItWasMadeOf) {
  const Model script = load_torchscript(script_path), plain = twin();
  EXPECT_EQ(losses_of_training(script, 6), losses_of_training(plain, 6));
  const auto ours = by_name(script.state_dict()), theirs = by_name(plain.state_dict());
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(ours.count(name)) << name;
    EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name;
  }
}

TEST_F(TorchScriptModel, KnowsItsModesModulesAndParameters) {
  const Model script = load_torchscript(script_path);
  EXPECT_TRUE(script.training());
  const at::Tensor x = formula_uniform("input0", {16, 1, 8, 8}).to(torch::kFloat32);
  {
    const EvalMode eval(script);
    EXPECT_FALSE(script.training());
    const at::Tensor before = script.named_buffers()[0].second.clone();
    script.forward(x);
    EXPECT_TRUE(torch::equal(script.named_buffers()[0].second, before)) << "evaluation must not move the statistics";
  }
  EXPECT_TRUE(script.training());
  const ModuleTypes types = script.module_types();
  EXPECT_THAT(types, testing::Contains(ModuleTypes::value_type("layer1.0.bn1", "BatchNorm2d")));
  EXPECT_THAT(summary(script, {1, 1, 8, 8}), HasSubstr("Conv2d"));
  EXPECT_EQ(script.parameters().size(), twin().parameters().size());
}

TEST_F(TorchScriptModel, StateComesBackThroughAFile) {
  const Model script = load_torchscript(script_path);
  losses_of_training(script, 2);
  io::save_safetensors(file("state.safetensors"), script.state_dict());
  const Model again = load_torchscript(script_path);
  EXPECT_TRUE(load_state_dict(again, io::load_tensors(file("state.safetensors"))).complete());
  EXPECT_EQ(losses_of_training(again, 2).size(), 2u);
  const auto ours = by_name(script.state_dict());
  load_state_dict(again, script.state_dict());
  for (const auto& [name, tensor] : again.state_dict()) EXPECT_TRUE(torch::equal(tensor, ours.at(name))) << name;
}

TEST_F(TorchScriptModel, TakesChannelsLastAndLowPrecision) {
  const Model script = load_torchscript(script_path), plain = twin();
  EXPECT_EQ(to_channels_last(script), to_channels_last(plain));
  for (const char* level : {"O1", "O2"}) {
    SCOPED_TRACE(level);
    const Model a = amp::apply(script, amp::policy(level)).model, b = amp::apply(plain, amp::policy(level)).model;
    const at::Tensor x =
        formula_uniform("input0", {16, 1, 8, 8}).to(torch::kFloat32).to(at::MemoryFormat::ChannelsLast);
    const at::Tensor ours = a.forward(x), theirs = b.forward(x);
    EXPECT_EQ(ours.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::allclose(ours, theirs, 2e-2, 2e-2)) << (ours - theirs).abs().max();
    ours.sum().backward();
    for (const auto& parameter : a.parameters()) EXPECT_TRUE(parameter.grad().defined());
    const EvalMode eval(a);
    EXPECT_FALSE(script.training());
  }
}

TEST_F(TorchScriptModel, EntryStartsEachRunFromTheFile) {
  const ModelEntry entry = model_entry(script_path);
  EXPECT_EQ(entry.input_shape[0], 1);
  const Model first = entry.make(10, 1);
  const at::Tensor start = first.parameters()[0].clone();
  losses_of_training(first, 1);
  EXPECT_FALSE(torch::equal(first.parameters()[0], start));
  EXPECT_TRUE(torch::equal(entry.make(10, 1).parameters()[0], start));
}

TEST_F(TorchScriptModel, TiedWeightsStandOnce) {
  torch::jit::Module inner("Inner"), outer("Outer");
  const at::Tensor weight = torch::ones({3}, torch::requires_grad());
  inner.register_parameter("weight", weight, false);
  inner.define("def forward(self, x):\n  return x * self.weight\n");
  outer.register_parameter("weight", weight, false);
  outer.register_module("inner", inner);
  outer.define("def forward(self, x):\n  return self.inner.forward(x) + self.weight\n");
  outer.save(file("tied.pt"));
  EXPECT_EQ(load_torchscript(file("tied.pt")).parameters().size(), 1u);
}

TEST_F(TorchScriptModel, WrongFilesAreNamedForWhatTheyAre) {
  EXPECT_THAT(message_of([&] { load_torchscript(file("none.pt")); }), HasSubstr("none.pt"));
  EXPECT_THAT(message_of([&] { load_torchscript(golden::path("digits_resnet_w2.pt")); }),
              HasSubstr("this file contains weights (torch.save), not a TorchScript program"));
  write_text_file(file("text.pt"), "no zip archive");
  EXPECT_THAT(message_of([&] { load_torchscript(file("text.pt")); }), HasSubstr("text.pt"));
  std::string bytes = read_text_file(script_path);
  bytes[bytes.find("conv1") + 2] ^= 1;
  write_text_file(file("flipped.pt"), bytes);
  EXPECT_THAT(message_of([&] { load_torchscript(file("flipped.pt")); }), HasSubstr("flipped.pt"));
  for (const size_t size : {size_t{10}, bytes.size() / 2, bytes.size() - 4}) {
    write_text_file(file("short.pt"), read_text_file(script_path).substr(0, size));
    EXPECT_THAT(message_of([&] { load_torchscript(file("short.pt")); }), HasSubstr("short.pt")) << size;
  }
}

TEST_F(TorchScriptModel, HasTheInputsAndOutputsOfItsForward) {
  const Model model =
      load_torchscript(program("def forward(self, a, b, scale: float = 1.0):\n  return (a + b, a - b)\n"));
  EXPECT_EQ(model.inputs(), (std::vector<ModelInput>{{"a"}, {"b"}, {"scale", true}}));
  EXPECT_EQ(model.outputs(), (std::vector<std::string>{"output_0", "output_1"}));
  const at::Tensor a = torch::rand({2, 4}), b = torch::rand({2, 4});
  const NamedTensors outputs = model.forward({{"b", b}, {"a", a}});
  EXPECT_TRUE(torch::equal(outputs[0].second, a + b));
  EXPECT_TRUE(torch::equal(outputs[1].second, a - b));
}

TEST_F(TorchScriptModel, WrongProgramsAreSaidInWords) {
  const at::Tensor x = torch::ones({2, 4});
  const std::string dictionary = program("def forward(self, x):\n  return {'a': x}\n");
  EXPECT_THAT(message_of([&] { load_torchscript(dictionary).forward(x); }),
              HasSubstr("to return a tensor or a tuple of tensors, got GenericDict"));
  const std::string linear = program("def forward(self, x):\n  return torch.matmul(x, self.weight.t())\n");
  EXPECT_EQ(model_entry(linear).make(3, 1).forward(x).size(1), 3);
  EXPECT_THAT(message_of([&] { model_entry(linear).make(10, 1).forward(x); }), HasSubstr("[batch, 10], got [2, 3]"));
  EXPECT_THAT(message_of([&] {
                load_torchscript(linear).forward(torch::ones({2, 5}));
              }),
              testing::AllOf(HasSubstr("net.pt"), HasSubstr("cannot be multiplied")));
  torch::jit::Module frozen("Net");
  frozen.define("def forward(self, x):\n  return x\n");
  frozen.save(file("frozen.pt"));
  EXPECT_THAT(message_of([&] { model_entry(file("frozen.pt")).make(10, 1); }),
              HasSubstr("the program cannot be trained"));
}

}  // namespace bellows::models
