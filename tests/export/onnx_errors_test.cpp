#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "bellows/export.h"

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string unwritten_file = ::testing::TempDir() + "bellows-onnx-errors.onnx";

auto refused(const OnnxFunction& function, const OnnxOptions& options = {}) {
  return [=] { export_onnx(function, {at::ones({2, 3, 4})}, unwritten_file, options); };
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
  EXPECT_FALSE(std::filesystem::exists(unwritten_file));
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

/// The files that an export leaves.
std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& one : std::filesystem::directory_iterator(folder)) names.insert(one.path().filename());
  return names;
}

/// A runtime that adds a number to the right results.
OnnxChecker runtime_that_adds(double number, std::string& loaded) {
  return {.name = "a runtime", .load = [number, &loaded](const std::string& path) -> OnnxFunction {
            loaded = path;
            EXPECT_TRUE(std::filesystem::exists(path));
            return [number](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{x[0] + 1 + number}; };
          }};
}

TEST(OnnxCheck, ComparesTheFileBeforeItGetsItsName) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "bellows-onnx-check";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder / "model.onnx";
  const std::vector<at::Tensor> inputs{at::randn({2, 3, 4})};
  std::string loaded;
  const OnnxReport report = export_onnx(identity, inputs, path, {.checker = runtime_that_adds(1e-6, loaded)});
  EXPECT_EQ(report.checked_by, "a runtime");
  EXPECT_EQ(report.checked_calls, 4) << "three recorded sizes, and a batch of one";
  EXPECT_GT(report.largest_difference, 0);
  EXPECT_THAT(report.to_text(), HasSubstr("checked in a runtime with 4 calls"));
  EXPECT_NE(loaded, path);
  EXPECT_EQ(files_in(folder), std::set<std::string>{"model.onnx"});

  const auto written = std::filesystem::last_write_time(path);
  EXPECT_THAT([&] { export_onnx(identity, inputs, path, {.checker = runtime_that_adds(0.1, loaded)}); },
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("output \"output\" of the file in a runtime differs"),
                                                   HasSubstr("sizes [2, 3, 4]"),
                                                   HasSubstr("The first operator that differs is aten::add"))));
  EXPECT_EQ(files_in(folder), std::set<std::string>{"model.onnx"});
  EXPECT_EQ(std::filesystem::last_write_time(path), written) << "the older file stays";

  const at::Tensor weight = at::ones({1});
  const OnnxFunction with_weight = [&](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0] + weight};
  };
  export_onnx(with_weight, inputs, path,
              {.weights = {{"weight", weight}}, .external_data_above = 0, .checker = runtime_that_adds(0, loaded)});
  EXPECT_EQ(files_in(folder), (std::set<std::string>{"model.onnx", "model.onnx.data"}));
}

}  // namespace
}  // namespace bellows
