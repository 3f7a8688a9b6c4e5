#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/exporting.h"
#include "bellows/export/first_difference.h"
#include "bellows/export/recordings.h"

namespace bellows::export_detail {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<VariedAxis> batch() {
  return {{.name = "batch", .places = {{0, 0}}, .sizes = {}}};
}

TEST(Recordings, TheFunctionKnowsThatItIsExported) {
  bool seen = false;
  const Forward function = [&](const std::vector<at::Tensor>& x) {
    seen = is_exporting();
    return std::vector<at::Tensor>{x[0] + 1};
  };
  const Recordings made = record_sizes(function, {at::ones({2, 3})}, batch(), {});
  EXPECT_TRUE(seen);
  EXPECT_FALSE(is_exporting());
  EXPECT_EQ(made.calls.size(), 3u);
  EXPECT_EQ(made.symbols[0].sizes.values, (std::vector<int64_t>{2, 3, 5}));
}

TEST(Recordings, NamedTensorsAndConstants) {
  const at::Tensor weight = at::randn({3});
  const std::vector<Named> named{{"weight", weight}};
  const Forward function = [&](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0] * weight + at::tensor({1.0F, 2.0F, 3.0F})};
  };
  const Recordings made = record_sizes(function, {at::ones({2, 3})}, batch(), named);
  std::vector<std::string> names;
  for (const InputSource& source : made.calls[0].sources) names.push_back(source.argument == 0 ? "input" : source.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("input", "weight", ""));
}

TEST(Recordings, ReadsOfValuesAreRefused) {
  const Forward function = [](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0].sum().item<float>() > 0 ? x[0] : -x[0]};
  };
  EXPECT_THAT(
      [&] {
        record_sizes(function, {at::ones({2, 3})}, {}, {});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("aten::_local_scalar_dense")));
  const Forward masked = [](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0].masked_select(x[0] > 0)};
  };
  EXPECT_THAT(
      [&] {
        record_sizes(masked, {at::ones({2, 3})}, {}, {});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("depend on values")));
}

TEST(Recordings, WritesToInputsAndWeightsAreRefused) {
  const at::Tensor weight = at::ones({3});
  const std::vector<Named> named{{"weight", weight}};
  const Forward input = [](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{x[0].mul_(2)}; };
  EXPECT_THAT(
      [&] {
        record_sizes(input, {at::ones({2, 3})}, {}, {});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("writes input 0")));
  const Forward model = [&](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0] + weight.add_(1)};
  };
  EXPECT_THAT(
      [&] {
        record_sizes(model, {at::ones({2, 3})}, {}, named);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("writes the tensor `weight`")));
}

TEST(Recordings, BranchesOnSizesAreRefused) {
  const Forward function = [](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0].size(0) % 2 == 0 ? x[0].relu() : x[0].exp()};
  };
  EXPECT_THAT(
      [&] {
        record_sizes(function, {at::ones({2, 3})}, {{.name = "batch", .places = {{0, 0}}, .sizes = {2, 3, 4}}}, {});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("other operators")));
  // With sizes that take the same branch, it works.
  const auto made =
      record_sizes(function, {at::ones({2, 3})}, {{.name = "batch", .places = {{0, 0}}, .sizes = {2, 4, 6}}}, {});
  EXPECT_EQ(made.calls[0].program.instructions.size(), 1u);
}

TEST(FirstDifference, NamesTheOperatorAndItsWeights) {
  const at::Tensor weight = at::randn({3});
  const std::vector<Named> named{{"layer.weight", weight}};
  const Forward function = [&](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{((x[0] * 2).relu() + weight).sigmoid()};
  };
  const Recordings made = record_sizes(function, {at::randn({2, 3})}, batch(), named);
  // An exported file whose third operator is wrong by `error`.
  const auto run = [&](double error) {
    return [&, error](const Recordings& probe) {
      EXPECT_EQ(probe.output_names.size(), 4u);
      const at::Tensor twice = probe.inputs[0][0] * 2, sum = twice.relu() + weight + error;
      return std::vector<at::Tensor>{twice, twice.relu(), sum, sum.sigmoid()};
    };
  };
  EXPECT_THAT(
      first_difference(made, run(0.25), false),
      HasSubstr(
          "aten::add.Tensor, operator 3 of the recording, which reads `layer.weight`. Its result differs by 0.25"));
  EXPECT_EQ(first_difference(made, run(1e-6), false), "");
  EXPECT_EQ(first_difference(
                made, [](const Recordings&) -> std::vector<at::Tensor> { throw std::runtime_error("no"); }, false),
            "");
}

}  // namespace
}  // namespace bellows::export_detail
