#include "bellows/core/print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/core/dtype_info.h"
#include "bellows/core/error.h"

namespace bellows {

namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

/// What tools/goldens/printing.py wrote.
const Json& golden() {
  static const Json content = Json::parse(std::ifstream(BELLOWS_SOURCE_DIR "/tests/goldens/core/printing.json"));
  return content;
}

at::ScalarType dtype_of(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (const auto [first, second] = c10::getDtypeNames(dtype); first == name || second == name) return dtype;
  }
  ADD_FAILURE() << "no dtype " << name;
  return at::kFloat;
}

double number_of(const Json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

at::Tensor values_of(const Json& values, at::ScalarType dtype) {
  const auto count = static_cast<int64_t>(values.size());
  if (dtype == at::ScalarType::UInt64)
    return torch::tensor(values.get<std::vector<int64_t>>()).view(at::ScalarType::UInt64);
  if (at::isIntegralType(dtype, false)) return torch::tensor(values.get<std::vector<int64_t>>());
  const at::Tensor tensor = torch::empty({count}, at::isComplexType(dtype) ? at::kComplexDouble : at::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    const Json& value = values[static_cast<size_t>(i)];
    if (value.is_array()) {
      tensor[i] = c10::complex<double>(number_of(value[0]), number_of(value[1]));
    } else {
      tensor[i] = value.is_boolean() ? static_cast<double>(value.get<bool>()) : number_of(value);
    }
  }
  return tensor;
}

at::Tensor tensor_of(const Json& golden_case) {
  const auto shape = golden_case["shape"].get<std::vector<int64_t>>();
  const at::ScalarType dtype = dtype_of(golden_case["dtype"]);
  at::Tensor tensor;
  if (golden_case.contains("formula")) {
    const Json& formula = golden_case["formula"];
    const auto factor = formula[0].get<int64_t>(), modulus = formula[1].get<int64_t>();
    const at::Tensor whole = (torch::arange(c10::multiply_integers(shape)) * factor).remainder(modulus);
    tensor = whole.to(at::kDouble) * formula[2].get<double>() + formula[3].get<double>();
  } else {
    tensor = values_of(golden_case["values"], dtype);
  }
  return tensor.to(dtype).view(shape).set_requires_grad(golden_case["requires_grad"]);
}

/// The message of the c10::ValueError that `action` throws.
std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  return "no error";
}

PrintOptions options_of(const Json& given) {
  PrintOptions options;
  options.precision = given.value("precision", options.precision);
  options.threshold = given.value("threshold", options.threshold);
  options.edgeitems = given.value("edgeitems", options.edgeitems);
  options.linewidth = given.value("linewidth", options.linewidth);
  if (given.contains("sci_mode") && !given["sci_mode"].is_null()) options.sci_mode = given["sci_mode"].get<bool>();
  return options;
}

}  // namespace

TEST(Print, WritesTheTextOfPython) {
  ASSERT_GT(golden()["cases"].size(), 700u);
  for (const Json& golden_case : golden()["cases"]) {
    const std::string text = to_text(tensor_of(golden_case), options_of(golden_case["options"]));
    EXPECT_EQ(text, golden_case["text"].get<std::string>())
        << golden_case["dtype"] << golden_case["shape"] << golden_case["options"];
  }
}

TEST(Print, KeepsOptionsForTheProcess) {
  const at::Tensor tensor = torch::tensor({0.5, 1.0 / 3.0});
  const PrintOptions before = print_options();
  set_print_options({.precision = 2});
  EXPECT_EQ(to_text(tensor), "tensor([0.50, 0.33])");
  EXPECT_EQ(print_options().precision, 2);
  set_print_options(before);
  EXPECT_EQ(to_text(tensor), "tensor([0.5000, 0.3333])");
  EXPECT_EQ(print_profile("short").precision, 2);
  EXPECT_EQ(print_profile("full").threshold, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(print_profile("default").threshold, 1000);
}

// The expected texts are those of Python for the same expressions.
TEST(Print, NamesTheBackwardOperatorAndOtherProperties) {
  const at::Tensor weight = torch::ones({2}, torch::requires_grad());
  EXPECT_EQ(to_text(weight), "tensor([1., 1.], requires_grad=True)");
  EXPECT_EQ(to_text(weight * weight), "tensor([1., 1.], grad_fn=<MulBackward0>)");
  EXPECT_EQ(to_text(weight.sum()), "tensor(2., grad_fn=<SumBackward0>)");
  EXPECT_EQ(to_text(torch::zeros({2, 3}, at::kMeta)), "tensor(..., device='meta', size=(2, 3))");
  EXPECT_EQ(to_text(torch::zeros({2}, at::TensorOptions(at::kMeta).dtype(at::kLong))),
            "tensor(..., device='meta', size=(2,), dtype=torch.int64)");
  EXPECT_EQ(to_text(torch::tensor({c10::complex<float>(1, 2)}).conj()), "tensor([1.-2.j])");
  EXPECT_EQ(to_text(torch::arange(6).view({2, 3}).t()), "tensor([[0, 3],\n        [1, 4],\n        [2, 5]])");
  EXPECT_EQ(to_text(at::Tensor()), "tensor(undefined)");
}

TEST(Print, FollowsTheDefaultDtype) {
  const auto before = torch::get_default_dtype();
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  EXPECT_EQ(to_text(torch::tensor({0.5}, at::kDouble)), "tensor([0.5000])");
  EXPECT_EQ(to_text(torch::tensor({0.5}, at::kFloat)), "tensor([0.5000], dtype=torch.float32)");
  torch::set_default_dtype(before);
}

TEST(Print, RejectsOtherLayoutsAndOptions) {
  const at::Tensor dense = torch::eye(3);
  EXPECT_THAT(refusal_of([&] { to_text(dense.to_sparse()); }), HasSubstr("got the layout Sparse. Use to_dense()"));
  EXPECT_THAT(refusal_of([&] { to_text(torch::quantize_per_tensor(dense, 1, 0, at::kQInt8)); }),
              HasSubstr("Use dequantize()"));
  EXPECT_THAT(refusal_of([] { set_print_options({.precision = -1}); }), HasSubstr("precision from 0 to 100, got -1"));
  EXPECT_THAT(refusal_of([] { set_print_options({.threshold = -1}); }), HasSubstr("threshold of at least 0, got -1"));
  EXPECT_THAT(refusal_of([] { set_print_options({.edgeitems = -2}); }), HasSubstr("edgeitems of at least 0, got -2"));
  EXPECT_THAT(refusal_of([] { set_print_options({.linewidth = 0}); }), HasSubstr("linewidth of at least 1, got 0"));
  EXPECT_THAT(refusal_of([] { print_profile("long"); }), HasSubstr("default, short or full, got \"long\""));
}

TEST(DtypeInfo, EqualsThatOfPython) {
  for (const Json& expected : golden()["finfo"]) {
    const FloatInfo info = finfo(dtype_of(expected["of"]));
    EXPECT_EQ(info.bits, expected["bits"]) << expected;
    EXPECT_EQ(info.eps, expected["eps"]) << expected;
    EXPECT_EQ(info.max, expected["max"]) << expected;
    EXPECT_EQ(info.min, expected["min"]) << expected;
    EXPECT_EQ(info.tiny, expected["tiny"]) << expected;
    EXPECT_EQ(info.smallest_normal, expected["smallest_normal"]) << expected;
    EXPECT_EQ(info.resolution, expected["resolution"]) << expected;
    EXPECT_EQ(c10::getDtypeNames(info.dtype).first, expected["dtype"]) << expected;
  }
  for (const Json& expected : golden()["iinfo"]) {
    const IntInfo info = iinfo(dtype_of(expected["of"]));
    EXPECT_EQ(info.bits, expected["bits"]) << expected;
    EXPECT_EQ(info.max, expected["max"].get<uint64_t>()) << expected;
    EXPECT_EQ(info.min, expected["min"]) << expected;
    EXPECT_EQ(c10::getDtypeNames(info.dtype).first, expected["dtype"]) << expected;
  }
}

TEST(DtypeInfo, RejectsOtherDtypes) {
  EXPECT_THAT(refusal_of([] { finfo(at::kLong); }),
              HasSubstr("expected a floating-point or complex dtype, got Long. Use iinfo()."));
  EXPECT_THAT(refusal_of([] { iinfo(at::kHalf); }), HasSubstr("expected an integer dtype, got Half. Use finfo()."));
  EXPECT_THAT(refusal_of([] { iinfo(at::kBool); }), HasSubstr("got Bool"));
  EXPECT_THAT(refusal_of([] { finfo(at::kBool); }), HasSubstr("got Bool"));
}

}  // namespace bellows
