// Exports randomly generated programs as TorchScript and .pt2, and writes inputs and outputs of eager calls. runtimes.sh
// compares them with PyTorch in Python.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

#include "bellows/export.h"
#include "tests/export/random_program.h"

namespace bellows {
namespace {

using testing::RandomProgram;
using testing::width;

class PytorchPrograms : public ::testing::TestWithParam<unsigned> {};

TEST_P(PytorchPrograms, IsExported) {
  const char* given = std::getenv("BELLOWS_EXPORT_FOLDER");
  const std::string folder = given ? given : ::testing::TempDir() + "bellows-pytorch-programs";
  std::filesystem::create_directories(folder);
  const RandomProgram program(GetParam());
  const std::string stem = folder + "/program" + std::to_string(GetParam());
  const PytorchOptions options{.output_names = {"y", "mean"},
                               .dynamic_axes = DynamicAxes{{"input", {{0, "batch"}, {1, "length"}}}},
                               .weights = program.weights()};
  const at::Tensor example = torch::randn({2, 5, width});
  const PytorchReport script = export_torchscript(program, {example}, stem + ".torchscript", options);
  EXPECT_EQ(script.outputs[0].sizes, (std::vector<std::string>{"batch", "length", "8"}));
  // Four recordings, and a size of 1 of each axis.
  EXPECT_EQ(script.checked_calls, 6);
  EXPECT_LT(script.largest_difference, 1e-5);
  const PytorchReport pt2 = export_pt2(program, {example}, stem + ".pt2", options);
  EXPECT_LT(pt2.largest_difference, 1e-5);
  testing::write_cases(program, stem);
  if (!given) std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PytorchPrograms, ::testing::Range(0U, 20U));

}  // namespace
}  // namespace bellows
