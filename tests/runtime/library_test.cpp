// The search for libraries, and descriptions in the source of packages.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <limits>

#include "bellows/runtime/backends.h"
#include "bellows/runtime/package_inputs.h"
#include "bellows/runtime/shared_library.h"
#include "model_files.h"
#include "tests/support/errors.h"

namespace bellows::runtime {

using ::testing::AllOf;
using ::testing::HasSubstr;

namespace {

LibrarySearch search_for(const std::string& file) {
  return {.title = "Test library", .file = file, .variable = "BELLOWS_TEST_LIBRARY", .advice = "Install it."};
}

}  // namespace

TEST(SharedLibraries, AreFoundByTheDynamicLinker) {
  const SharedLibrary library(search_for("libm.so.6"));
  EXPECT_EQ(library.missing(), "");
  EXPECT_EQ(library.path(), "libm.so.6");
  ASSERT_NE(library.find<double (*)(double)>("cos"), nullptr);
  EXPECT_EQ(library.find<double (*)(double)>("cos")(0), 1);
  EXPECT_EQ(library.find<void (*)()>("no_such_function"), nullptr);
}

TEST(SharedLibraries, StateWhatToInstall) {
  const SharedLibrary library(search_for("libnone-1.so"));
  EXPECT_THAT(library.missing(), AllOf(HasSubstr("Test library was not found. Install it."),
                                       HasSubstr("set BELLOWS_TEST_LIBRARY to the folder of libnone-1.so")));
  EXPECT_EQ(library.find<void (*)()>("cos"), nullptr);
}

TEST(SharedLibraries, AreTakenOnlyFromTheGivenPlace) {
  const TestFolder folder;
  LibrarySearch search = search_for("libm.so");
  search.place = folder / "";
  EXPECT_THAT(SharedLibrary(search).missing(), HasSubstr("there is no libm.so in the folder of"));
  std::ofstream(folder / "libm.so.6") << "no library";
  EXPECT_THAT(SharedLibrary(search).missing(), HasSubstr("libm.so.6: "));
  setenv("BELLOWS_TEST_LIBRARY", "/none/libm.so", 1);
  EXPECT_THAT(SharedLibrary(search_for("libm.so.6")).missing(),
              HasSubstr("BELLOWS_TEST_LIBRARY=/none/libm.so cannot be loaded"));
  unsetenv("BELLOWS_TEST_LIBRARY");
}

TEST(AbsentLibraries, StateWhatToInstall) {
  const TestFolder folder;
  for (const auto& backend : {make_onnxruntime_backend(folder / ""), make_openvino_backend(folder / "")}) {
    EXPECT_THAT(backend->missing(), HasSubstr("there is no lib")) << backend->name();
    EXPECT_EQ(backend->version(), "");
    EXPECT_THROW(backend->load("model.onnx"), c10::NotImplementedError);
    std::ofstream(folder / "model.onnx").flush();
    EXPECT_TRUE(backend->accepts(folder / "model.onnx")) << "the answer does not depend on the library";
  }
}

TEST(AbsentLibraries, OtherLibrariesAreRefused) {
  EXPECT_THAT(make_onnxruntime_backend("libm.so.6")->missing(), HasSubstr("because it has no OrtGetApiBase"));
  EXPECT_THAT(make_openvino_backend("libm.so.6")->missing(), HasSubstr("has no function ov_get_openvino_version"));
}

namespace {

constexpr const char* source = R"(
    inputs_info_[0].name = "arg0_1";
    inputs_info_[1].name = "arg1_1";
    outputs_info_[0].name = "output0";
AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    int32_t arg0_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg0_1_expected_dtype != arg0_1_dtype) {
    }
    if (arg0_1_size[0] < 2) {
    }
    if (arg0_1_size[0] > 16) {
    }
    if (3 != arg0_1_size[1]) {
    }
    if (4 != arg0_1_size[2]) {
    }
    if (5 != arg0_1_size[3]) {
    }
    if (60 != arg0_1_stride[0]) {
    }
    if (1 != arg0_1_stride[1]) {
    }
    if (15 != arg0_1_stride[2]) {
    }
    if (3 != arg0_1_stride[3]) {
    }
}

AOTI_NOINLINE static void check_input_1(
    AtenTensorHandle* input_handles
) {
    int32_t arg1_1_expected_dtype = aoti_torch_dtype_int64();
    if (1 != arg1_1_stride[1]) {
    }
}
)";

}  // namespace

TEST(PackageInputs, AreReadFromTheSource) {
  const std::vector<PackageInput> inputs = package_inputs(source);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].info.name, "arg0_1");
  EXPECT_EQ(inputs[0].info.dtype, at::kFloat);
  EXPECT_EQ(inputs[0].info.sizes, (std::vector<int64_t>{-1, 3, 4, 5}));
  EXPECT_EQ(inputs[0].strides, (std::vector<int64_t>{60, 1, 15, 3}));
  EXPECT_EQ(inputs[0].least[0], 2);
  EXPECT_EQ(inputs[0].most[0], 16);
  EXPECT_EQ(inputs[1].info.dtype, at::kLong);
  EXPECT_EQ(inputs[1].info.sizes, (std::vector<int64_t>{-1, -1}));
  EXPECT_EQ(inputs[1].most[1], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(package_outputs(source), std::vector<std::string>{"output0"});
  EXPECT_TRUE(package_inputs("").empty());
  EXPECT_TRUE(package_inputs("inputs_info_[0].name = \"").empty());
}

TEST(PackageInputs, GetTheStridesOfThePackage) {
  const PackageInput input = package_inputs(source)[0];
  const at::Tensor x = at::randn({2, 3, 4, 5});
  const at::Tensor given = with_strides_of(input, x, "file");
  EXPECT_TRUE(given.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(given.equal(x));
  EXPECT_EQ(with_strides_of(input, given, "file").data_ptr(), given.data_ptr()) << "no copy";
  EXPECT_THAT(message_of([&] {
                with_strides_of(input, at::randn({17, 3, 4, 5}), "file");
              }),
              HasSubstr("file: input \"arg0_1\": axis 0 must have 2 to 16 elements, got 17"));
  PackageInput odd = input;
  odd.strides = {60, 20, 1, 4};
  EXPECT_THAT(message_of([&] { with_strides_of(odd, x, "file"); }), HasSubstr("which no memory format has"));
}

}  // namespace bellows::runtime
