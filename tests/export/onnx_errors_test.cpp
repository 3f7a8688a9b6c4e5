#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "bellows/export.h"

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string file = ::testing::TempDir() + "bellows-onnx-errors.onnx";

auto refused(const OnnxFunction& function, const OnnxOptions& options = {}) {
  return [=] { export_onnx(function, {at::ones({2, 3, 4})}, file, options); };
}

const OnnxFunction identity = [](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{x[0] + 1}; };

TEST(OnnxErrors, AnOperatorWithoutAMappingIsNamed) {
  const at::Tensor weight = at::randn({4, 4});
  const OnnxFunction function = [&](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0] + at::linalg_det(weight)};
  };
  EXPECT_THAT(refused(function, {.weights = {{"layer.matrix", weight}}}),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("aten::_linalg_det"), HasSubstr("has no mapping"),
                                                   HasSubstr("`layer.matrix`"), HasSubstr("docs/export.md"))));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(OnnxErrors, OptionsAreChecked) {
  EXPECT_THAT(refused(identity, {.dynamic_axes = DynamicAxes{{"inputt", {{0, "batch"}}}}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("Did you mean \"input\"?")));
  EXPECT_THAT(refused(identity, {.dynamic_axes = DynamicAxes{{"input", {{3, "x"}}}}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("there is no axis 3")));
  EXPECT_THAT(refused(identity, {.dynamic_axes = DynamicAxes{{"input", {{0, "n"}, {1, "n"}}}}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("must have the same size")));
  EXPECT_THAT(refused(identity, {.sizes = {{"batch", {2, 3}}}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("three different sizes")));
  EXPECT_THAT(refused(identity, {.sizes = {{"bach", {2, 3, 4}}}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("Did you mean \"batch\"?")));
  EXPECT_THAT(refused(identity, {.output_names = {"a", "b"}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("1 names of outputs")));
  EXPECT_THAT(refused(identity, {.opset = 9}), ThrowsMessage<c10::ValueError>(HasSubstr("opset")));
}

TEST(OnnxErrors, AFunctionThatAcceptsOneSizeOnly) {
  const OnnxFunction function = [](const std::vector<at::Tensor>& x) {
    TORCH_CHECK_VALUE(x[0].size(0) == 2, "only two samples");
    return std::vector<at::Tensor>{x[0] + 1};
  };
  EXPECT_THAT(refused(function),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("only two samples"), HasSubstr("dynamic_axes"))));
}

TEST(OnnxErrors, RandomOperatorsHaveNoMapping) {
  const OnnxFunction function = [](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{at::dropout(x[0], 0.5, true)};
  };
  EXPECT_THAT(refused(function), ThrowsMessage<c10::ValueError>(HasSubstr("no mapping")));
}

/// The table in docs/export.md is that of the code.
TEST(OnnxErrors, TheDocumentListsAllMappings) {
  std::ifstream stream(BELLOWS_SOURCE_DIR "/docs/export.md");
  std::stringstream text;
  text << stream.rdbuf();
  std::string expected;
  for (const OnnxMapping& one : onnx_mappings()) expected += "| `" + one.aten + "` | " + one.onnx + " |\n";
  EXPECT_NE(text.str().find(expected), std::string::npos) << "docs/export.md needs this table:\n" << expected;
}

}  // namespace
}  // namespace bellows
