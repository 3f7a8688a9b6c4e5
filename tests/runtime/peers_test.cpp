// Back ends with the libraries of other projects. peers.sh sets BELLOWS_ONNXRUNTIME, BELLOWS_OPENVINO and
// BELLOWS_TEST_PACKAGE, a package of AOTInductor.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "bellows/io/archives/zip.h"
#include "bellows/runtime/backends.h"
#include "bellows/system/file.h"
#include "model_files.h"
#include "tests/support/errors.h"

namespace bellows::runtime {

namespace {

using ::testing::HasSubstr;

class OnnxFiles : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(library().missing(), "");
    write_onnx(file());
  }
  std::string file() const { return folder_ / "net.onnx"; }
  const InferenceBackend& library() const { return backend(GetParam()); }

 private:
  TestFolder folder_;
};

std::string package() {
  const char* path = std::getenv("BELLOWS_TEST_PACKAGE");
  return path ? path : "";
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Libraries, OnnxFiles, ::testing::Values("onnxruntime", "openvino"),
                         [](const auto& library) { return std::string(library.param); });

TEST_P(OnnxFiles, KeepTheContract) {
  expect_contract(library(), file());
}

TEST_P(OnnxFiles, TruncatedFilesThrow) {
  expect_truncated_files_throw(library(), file());
}

TEST_P(OnnxFiles, StateNames) {
  const auto model = library().load(file());
  EXPECT_EQ(model->inputs()[0].name, "x");
  EXPECT_EQ(model->outputs()[0].name, "y");
  EXPECT_EQ(model->outputs()[0].sizes, (std::vector<int64_t>{-1, 4}));
}

TEST_P(OnnxFiles, ModelsMayEndBeforeTheirResults) {
  for (const int64_t threads : {1, 2}) {
    std::vector<std::future<std::vector<at::Tensor>>> futures;
    std::vector<at::Tensor> results;
    {
      const auto model = library().load(file(), {.threads = threads});
      results = model->run(std::vector<at::Tensor>{test_input(3)});
      for (int i = 0; i < 20; ++i) futures.push_back(model->run_async({test_input(3)}));
    }
    EXPECT_LT(results[0].sub(test_model(test_input(3))[0]).abs().max().item<double>(), 1e-5);
    for (auto& future : futures) EXPECT_TRUE(future.get()[0].equal(results[0]));
  }
}

TEST_P(OnnxFiles, AcceptEmptyBatches) {
  const auto model = library().load(file());
  const auto results = model->run(std::vector<at::Tensor>{at::empty({0, 8})});
  EXPECT_EQ(results[0].sizes(), (std::vector<int64_t>{0, 4}));
}

TEST(OnnxRuntime, StatesItsExecutionProviders) {
  const InferenceBackend& library = backend("onnxruntime");
  const TestFolder folder;
  write_onnx(folder / "net.onnx");
  EXPECT_NO_THROW(library.load(folder / "net.onnx", {.providers = {"cpu"}}));
  EXPECT_THAT(
      message_of([&] { library.load(folder / "net.onnx", {.providers = {"tpu"}}); }),
      HasSubstr("unknown execution provider \"tpu\" of ONNX Runtime. Expected cpu, openvino, cuda or tensorrt."));
  const std::string cuda = message_of([&] { library.load(folder / "net.onnx", {.providers = {"cuda", "cpu"}}); });
  EXPECT_THAT(cuda, ::testing::AnyOf(HasSubstr("no execution provider cuda. It has "), HasSubstr("CUDA"), "no error"));
  EXPECT_THAT(message_of([&] { library.load(folder / "net.onnx", {.autocast = at::kBFloat16}); }),
              HasSubstr("computes in the dtypes of the file"));
}

TEST(OpenVino, ChecksItsDevices) {
  const InferenceBackend& library = backend("openvino");
  const TestFolder folder;
  write_onnx(folder / "net.onnx");
  EXPECT_THROW(library.load(folder / "net.onnx", {.providers = {"NONE"}}), c10::ValueError);
  EXPECT_THAT(message_of([&] {
                library.load(folder / "net.onnx", {.providers = {"CPU", "GPU"}});
              }),
              HasSubstr("expected one device in `providers`, got 2"));
}

TEST(Package, KeepsTheContract) {
  expect_contract(backend("aotinductor"), package(), {.output_types = false, .smallest_batch = 2});
}

TEST(Package, TruncatedFilesThrow) {
  expect_truncated_files_throw(backend("aotinductor"), package());
}

TEST(Package, RefusesSizesForWhichItWasNotCompiled) {
  const auto model = backend("aotinductor").load(package());
  EXPECT_THAT(message_of([&] {
                model->run(std::vector<at::Tensor>{at::randn({1025, 8})});
              }),
              HasSubstr("axis 0 must have 2 to 1024 elements, got 1025"));
}

TEST(Package, WithoutSourceIsRefused) {
  const TestFolder folder;
  {
    const MappedFile file(package());
    const io::ZipReader zip(file.bytes(), package());
    io::ZipWriter writer(folder / "bare.pt2");
    for (const io::ZipEntry& entry : zip.entries()) {
      if (!entry.name.ends_with(".wrapper.cpp")) writer.add(entry.name, entry.data);
    }
    writer.close();
  }
  EXPECT_THAT(message_of([&] { backend("aotinductor").load(folder / "bare.pt2"); }),
              HasSubstr("does not contain the source of its wrapper"));
}

}  // namespace bellows::runtime
