// Exports randomly generated programs, and writes inputs and outputs of eager calls. runtimes.sh compares them with ONNX
// Runtime and OpenVINO.
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

class RandomPrograms : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomPrograms, IsExported) {
  const char* given = std::getenv("BELLOWS_EXPORT_FOLDER");
  const std::string folder = given ? given : ::testing::TempDir() + "bellows-onnx-programs";
  std::filesystem::create_directories(folder);
  const RandomProgram program(GetParam());
  const std::string stem = folder + "/program" + std::to_string(GetParam());
  const OnnxReport report = export_onnx(program, {torch::randn({2, 5, width})}, stem + ".onnx",
                                        {.output_names = {"y", "mean"},
                                         .dynamic_axes = DynamicAxes{{"input", {{0, "batch"}, {1, "length"}}}},
                                         .weights = program.weights()});
  EXPECT_EQ(report.outputs[0].shape, (std::vector<std::string>{"batch", "length", "8"}));
  testing::write_cases(program, stem);
  if (!given) std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPrograms, ::testing::Range(0U, 30U));

}  // namespace
}  // namespace bellows
