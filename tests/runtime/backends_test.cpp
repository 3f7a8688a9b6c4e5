// Back ends that need no other libraries, and the detection of files.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "bellows/runtime/backend.h"
#include "bellows/runtime/file_kind.h"
#include "model_files.h"
#include "tests/support/errors.h"

namespace bellows::runtime {

namespace {

using ::testing::HasSubstr;
constexpr Statement names_only{.types = false, .output_types = false};

/// All files, which are written once.
class ModelFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestFolder;
    write_script(script());
    write_program(program());
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string script() { return *folder_ / "net.pt"; }
  static std::string program() { return *folder_ / "net.program"; }

 private:
  static inline TestFolder* folder_ = nullptr;
};

}  // namespace

TEST_F(ModelFiles, LibtorchKeepsTheContract) {
  expect_contract(backend("libtorch"), script(), names_only);
}
TEST_F(ModelFiles, CompiledKeepsTheContract) {
  expect_contract(backend("compiled"), script(), names_only);
}
TEST_F(ModelFiles, ProgramKeepsTheContract) {
  expect_contract(backend("program"), program());
}

TEST_F(ModelFiles, TruncatedFilesThrow) {
  expect_truncated_files_throw(backend("libtorch"), script());
  expect_truncated_files_throw(backend("compiled"), script());
  expect_truncated_files_throw(backend("program"), program());
}

TEST_F(ModelFiles, StateTheNamesOfAxes) {
  const auto model = backend("program").load(program());
  EXPECT_EQ(model->inputs()[0].name, "x");
  EXPECT_EQ(model->inputs()[0].axes, (std::vector<std::string>{"batch", ""}));
  EXPECT_EQ(model->outputs()[1].name, "mean");
  EXPECT_EQ(model->outputs()[1].sizes, std::vector<int64_t>{-1});
}

TEST_F(ModelFiles, NameTheBackEndsOfAnotherKindOfFile) {
  EXPECT_THAT(message_of([&] { backend("libtorch").load(program()); }),
              HasSubstr("which is a compiled program of Bellows. Back ends for this file: program."));
  EXPECT_THAT(message_of([&] { backend("aotinductor").load(script()); }),
              HasSubstr("which is a TorchScript program. Back ends for this file: libtorch, compiled."));
}

TEST_F(ModelFiles, RunInLowerPrecision) {
  const at::Tensor x = test_input(3), expected = test_model(x)[0];
  for (const char* name : {"libtorch", "compiled"}) {
    const auto model = backend(name).load(script(), {.autocast = at::kBFloat16});
    const double difference = model->run(std::vector<at::Tensor>{x})[0].sub(expected).abs().max().item<double>();
    EXPECT_LT(difference, 3e-2) << name;
    // Compiled functions compute in fp32 on processors with slow bf16.
    EXPECT_TRUE(difference > 1e-5 || name != std::string("libtorch"));
  }
  EXPECT_THAT(message_of([&] { backend("program").load(program(), {.autocast = at::kBFloat16}); }),
              HasSubstr("computes in the dtypes of the file"));
  EXPECT_THAT(message_of([&] { backend("libtorch").load(script(), {.autocast = at::kInt}); }),
              HasSubstr("`autocast` must be BFloat16 or Half, got Int"));
  EXPECT_THAT(message_of([&] { backend("libtorch").load(script(), {.providers = {"cpu"}}); }),
              HasSubstr("`providers` is only for"));
}

TEST(Backends, AreListedInOrder) {
  std::string names;
  for (const InferenceBackend* one : backends()) names += one->name() + " ";
  EXPECT_EQ(names, "libtorch compiled program aotinductor onnxruntime openvino tensorrt ");
  EXPECT_THAT(message_of([] { backend("onnxruntme"); }), HasSubstr("Did you mean \"onnxruntime\"?"));
  EXPECT_THAT(message_of([] { backend("none"); }), HasSubstr("Back ends: libtorch, compiled, program"));
}

TEST(Backends, TensorRtStatesHowToGetIt) {
  const InferenceBackend& tensorrt = backend("tensorrt");
  if (tensorrt.missing().empty()) GTEST_SKIP() << "This build has TensorRT.";
  EXPECT_THAT(tensorrt.missing(), HasSubstr("BELLOWS_TENSORRT"));
  EXPECT_THROW(tensorrt.load("model.onnx"), c10::NotImplementedError);
}

TEST(FileKinds, AreDetectedFromTheContent) {
  const TestFolder folder;
  const auto kind = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return file_kind(folder / name);
  };
  EXPECT_EQ(kind("model", std::string("\x08\x08\x12\x07", 4) + "bellows"), FileKind::onnx);
  EXPECT_EQ(kind("model.onnx", ""), FileKind::onnx);
  EXPECT_EQ(kind("model.xml", "<?xml version=\"1.0\"?>\n<net name=\"x\">"), FileKind::openvino);
  EXPECT_EQ(kind("page", "<?xml version=\"1.0\"?>\n<html>"), FileKind::unknown);
  EXPECT_EQ(kind("program", "BLWPROGR"), FileKind::program);
  EXPECT_EQ(kind("cut.pt2", "PK\x03\x04"), FileKind::aotinductor);
  EXPECT_EQ(kind("cut.pt", "PK\x03\x04"), FileKind::torchscript);
  EXPECT_EQ(kind("nothing", ""), FileKind::unknown);
  EXPECT_EQ(file_kind(folder / "none"), FileKind::missing);
}

}  // namespace bellows::runtime
