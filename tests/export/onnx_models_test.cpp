#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "bellows/export.h"
#include "bellows/models/bert.h"
#include "bellows/models/registry.h"
#include "tests/export/onnx_reader.h"

namespace bellows {
namespace {

/// Small registered models with all axes that they can vary. bench/export compares the files of all models with runtimes.
class OnnxModels : public ::testing::TestWithParam<const char*> {};

TEST_P(OnnxModels, IsValidAndDynamic) {
  const models::ModelEntry& entry = models::registry().at(GetParam());
  const Model model = entry.make(10, entry.input_shape[0] > 0 ? entry.input_shape[0] : 3);
  const bool sequence = entry.input == models::InputKind::tokens || entry.input == models::InputKind::series;
  const std::vector<at::Tensor> inputs = models::example_inputs(entry, 2, sequence ? 12 : 0);
  DynamicAxes axes;
  for (size_t i = 0; i < inputs.size(); ++i) axes[model.inputs()[i].name] = {{0, "batch"}};
  if (sequence) axes[model.inputs()[0].name][1] = "sequence";
  const std::string path = ::testing::TempDir() + "bellows-" + GetParam() + ".onnx";
  const OnnxReport report = export_onnx(model, inputs, path, {.dynamic_axes = axes});
  const testing::OnnxFile file = testing::read_onnx(path);
  std::filesystem::remove(path);
  EXPECT_EQ(file.inputs[0].shape[0], "batch");
  EXPECT_EQ(file.outputs[0].shape[0], "batch");
  if (sequence) {
    EXPECT_EQ(file.inputs[0].shape[1], "sequence");
  }
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (file.initializers.contains(name)) {
      EXPECT_EQ(file.initializers.at(name).sizes, tensor.sizes().vec()) << name;
    }
  }
  EXPECT_FALSE(report.operators.empty());
}

INSTANTIATE_TEST_SUITE_P(All, OnnxModels,
                         ::testing::Values("mlp", "digits_resnet", "googlenet", "tabular_mlp", "bert-20m",
                                           "encoder_decoder"));

}  // namespace
}  // namespace bellows
