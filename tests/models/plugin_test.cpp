#include "bellows/models/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "bellows/models/register_model.h"
#include "bellows/system/file.h"
#include "tests/support/errors.h"

namespace {

struct ScoresImpl : torch::nn::Module {
  ScoresImpl(int64_t num_classes, int64_t in_channels)
      : fc(register_module("fc", torch::nn::Linear(in_channels, num_classes))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(x.mean({2, 3})); }
  torch::nn::Linear fc;
};
TORCH_MODULE(Scores);

struct Ten : torch::nn::Module {  // no holder, no arguments
  at::Tensor forward(const at::Tensor& x) { return torch::zeros({x.size(0), 10}); }
};

}  // namespace

BELLOWS_MODEL("test_scores", Scores);
BELLOWS_MODEL("test_ten", Ten, .description = "always zero", .input_shape = {3, 5, 5});

namespace bellows::models {

using testing::HasSubstr;

TEST(RegisterModel, MacroMakesModelsOfHoldersAndClasses) {
  const Model scores = registry().at("test_scores").make(7, 3);
  EXPECT_EQ(scores.name(), "test_scores");
  EXPECT_EQ(scores.forward(torch::ones({2, 3, 4, 4})).sizes(), (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(model_entry("test_ten").description, "always zero");
  EXPECT_EQ(model_entry("test_ten").input_shape[2], 5);
  EXPECT_EQ(model_entry("test_ten").make(10, 3).forward(torch::ones({2, 3, 5, 5})).size(1), 10);
}

TEST(RegisterModel, TakenNameIsSaidOnceAndLeavesTheOthers) {
  announce_model({"resnet18", "mine", {1, 1, 1}, {}});
  announce_model({"test_late", "mine", {1, 1, 1}, {}});
  EXPECT_THAT(message_of([] { registry(); }), HasSubstr("\"resnet18\" is taken"));
  EXPECT_EQ(registry().at("resnet18").description, "ResNet-18 with torchvision's names");
  EXPECT_NE(registry().find("test_late"), nullptr);
}

TEST(RegisterModel, UnknownNameSaysWaysToBringOne) {
  const std::string message = message_of([] { model_entry("digits_resnt"); });
  EXPECT_THAT(message, HasSubstr("Did you mean \"digits_resnet\"?"));
  EXPECT_THAT(message, HasSubstr("TorchScript"));
  EXPECT_THAT(message_of([] { model_entry("./none.pt"); }), HasSubstr("./none.pt"));
}

/// The loading of a real plugin is in tests/cli: it needs a program that exports what plugins take from it.
TEST(Plugin, WrongFilesAreRefusedBeforeTheirCodeRuns) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / c10::str("plugin_", getpid(), ".so")).string();
  const std::string mark = BELLOWS_PLUGIN_ABI_MARK, elf =
                                                        "\x7f"
                                                        "ELF, or so ";
  EXPECT_THAT(message_of([&] { load_plugin(path); }), HasSubstr(path));
  write_text_file(path, "#!/bin/sh\n");
  EXPECT_THAT(message_of([&] { load_plugin(path); }), HasSubstr("is not a shared library"));
  write_text_file(path, elf);
  EXPECT_THAT(message_of([&] { load_plugin(path); }), HasSubstr("BELLOWS_MODEL"));
  write_text_file(path, elf + mark + "Bellows 0.0.1, libtorch 1.0.0" + '\0');
  EXPECT_THAT(
      message_of([&] { load_plugin(path); }),
      testing::AllOf(HasSubstr("was built with Bellows 0.0.1, libtorch 1.0.0, but"), HasSubstr(BELLOWS_PLUGIN_ABI)));
  write_text_file(path, elf + mark + BELLOWS_PLUGIN_ABI + '\0' + BELLOWS_LIBRARY_MARK);
  EXPECT_THAT(message_of([&] { load_plugin(path); }), HasSubstr("contains a copy of Bellows"));
  write_text_file(path, elf + mark + BELLOWS_PLUGIN_ABI + '\0');
  EXPECT_THAT(message_of([&] { load_plugin(path); }), HasSubstr("load_plugin: "));
  std::filesystem::remove(path);
}

}  // namespace bellows::models
