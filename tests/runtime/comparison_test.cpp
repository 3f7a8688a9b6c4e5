#include "bellows/runtime/comparison.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bellows/runtime/example_inputs.h"
#include "model_files.h"
#include "tests/support/errors.h"

namespace bellows::runtime {

namespace {

using ::testing::HasSubstr;

ComparisonOptions quick() {
  ComparisonOptions options;
  options.seconds = 0.01;
  options.inputs = [](const std::vector<TensorInfo>& described) {
    EXPECT_EQ(described.size(), 1u);
    return std::vector<at::Tensor>{test_input(4)};
  };
  return options;
}

}  // namespace

TEST(Differences, NameTheWorstElement) {
  const at::Tensor a = at::ones({2, 3}), b = a.clone();
  EXPECT_EQ(difference_of({a, a}, {b, b}).relative, 0);
  EXPECT_EQ(difference_of({a, a}, {b, b}).text, "");
  b[1][2] = 1.5;
  const Difference found = difference_of({a, a.mul(2)}, {a, b.mul(2).to(at::kDouble)});
  EXPECT_DOUBLE_EQ(found.relative, 0.5);
  EXPECT_EQ(found.output, 1);
  EXPECT_EQ(found.place, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(found.text, "output 1 at [1, 2], expected 2, got 3");
}

TEST(Differences, OfSizesAndNumbersAreInfinite) {
  const at::Tensor a = at::ones({2, 3});
  EXPECT_THAT(difference_of({a}, {a, a}).text, HasSubstr("expected 1 outputs, got 2"));
  EXPECT_TRUE(std::isinf(difference_of({a}, {at::ones({3, 2})}).relative));
  at::Tensor nan = a.clone();
  nan[0][1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isinf(difference_of({a}, {nan}).relative));
  EXPECT_TRUE(std::isinf(difference_of({nan}, {a}).relative));
  EXPECT_EQ(difference_of({nan}, {nan}).relative, 0);
  const at::Tensor infinite = a.div(0);
  EXPECT_EQ(difference_of({infinite}, {infinite}).relative, 0);
  EXPECT_EQ(difference_of({at::empty({0})}, {at::empty({0})}).relative, 0);
}

TEST(ExampleInputs, HaveTheChosenSizes) {
  const std::vector<TensorInfo> infos = {
      {.name = "ids", .dtype = at::kLong, .sizes = {-1, -1}, .axes = {"batch", "tokens"}},
      {.name = "image", .dtype = at::kHalf, .sizes = {-1, 3, -1, 32}},
      {.name = "mask", .dtype = at::kBool, .sizes = {4}}};
  const auto usual = example_inputs(infos);
  EXPECT_EQ(usual[0].sizes(), (std::vector<int64_t>{1, 128}));
  EXPECT_EQ(usual[1].sizes(), (std::vector<int64_t>{1, 3, 224, 32}));
  EXPECT_EQ(usual[1].scalar_type(), at::kHalf);
  EXPECT_EQ(usual[2].scalar_type(), at::kBool);
  const auto chosen = example_inputs(
      infos, {.batch_size = 2, .length = 9, .sizes = {{"tokens", 14}, {"image:2", 16}}, .vocabulary = 5});
  EXPECT_EQ(chosen[0].sizes(), (std::vector<int64_t>{2, 14}));
  EXPECT_EQ(chosen[1].sizes(), (std::vector<int64_t>{2, 3, 16, 32}));
  EXPECT_LT(chosen[0].max().item<int64_t>(), 5);
  EXPECT_GE(chosen[0].min().item<int64_t>(), 0);
  EXPECT_TRUE(example_inputs(infos)[0].equal(usual[0])) << "the values are always the same";
  EXPECT_THAT(message_of([&] {
                example_inputs(infos, {.sizes = {{"token", 14}}});
              }),
              HasSubstr("no input has an axis \"token\" that may vary. Axes: batch, image:0, image:2, tokens. Did you "
                        "mean \"tokens\"?"));
  EXPECT_THAT(message_of([&] { example_inputs(infos, {.batch_size = 0}); }), HasSubstr("must have at least 1 element"));
  EXPECT_THAT(message_of([&] { example_inputs(infos, {.vocabulary = 0}); }), HasSubstr("`vocabulary`"));
  const std::vector<TensorInfo> unknown = {{.name = "x", .dtype = c10::ScalarType::Undefined}};
  EXPECT_THAT(message_of([&] { example_inputs(unknown); }), HasSubstr("neither dtype nor sizes"));
}

TEST(Comparison, MeasuresAllModelsInTurns) {
  const TestFolder folder;
  write_program(folder / "net.program");
  write_script(folder / "net.pt");
  const auto rows = compare_models({folder / "net.program", folder / "net.pt"}, quick());
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].backend, "program");
  EXPECT_EQ(rows[1].backend, "libtorch");
  EXPECT_TRUE(rows[1].reference);
  for (const ComparedModel& row : rows) {
    EXPECT_EQ(row.problem, "");
    EXPECT_TRUE(row.agrees);
    EXPECT_EQ(row.difference.has_value(), !row.reference);
    EXPECT_GE(row.calls.size(), 5u);
    EXPECT_EQ(row.windows.size(), rows[0].windows.size());
    EXPECT_GT(row.median_s, 0);
    EXPECT_GE(row.p90_s, row.median_s);
    EXPECT_DOUBLE_EQ(row.throughput, 4 / row.median_s);
    EXPECT_EQ(std::isnan(row.speedup.ratio), row.reference);
  }
}

TEST(Comparison, MarksModelsThatDisagree) {
  const TestFolder folder;
  write_program(folder / "net.program");
  write_script(folder / "net.pt");
  ComparisonOptions options = quick();
  options.tolerance = 0;
  options.backends = {"libtorch", "program"};
  const auto rows = compare_models({folder / "net.pt", folder / "net.program"}, options);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].agrees, rows[1].difference->relative == 0);
  options.tolerance = -1;
  EXPECT_FALSE(compare_models({folder / "net.pt", folder / "net.program"}, options)[1].agrees);
}

TEST(Comparison, ReportsErrorsOfEachModel) {
  const TestFolder folder;
  write_script(folder / "net.pt");
  ComparisonOptions options = quick();
  options.inputs = [](const auto&) { return std::vector<at::Tensor>{at::randn({2, 9})}; };
  for (const ComparedModel& row : compare_models({folder / "net.pt"}, options)) {
    EXPECT_THAT(row.problem, HasSubstr("the program failed with inputs Float [2, 9]")) << row.backend;
    EXPECT_TRUE(row.calls.empty());
  }
  EXPECT_THAT(message_of([&] { compare_models({folder / "none"}, options); }), HasSubstr("there is no such file"));
  options.backends = {"program"};
  EXPECT_THAT(message_of([&] { compare_models({folder / "net.pt"}, options); }),
              HasSubstr("none of the chosen back ends reads a TorchScript program"));
  options.backends = {"none"};
  EXPECT_THAT(message_of([&] { compare_models({folder / "net.pt"}, options); }), HasSubstr("unknown back end"));
}

}  // namespace bellows::runtime
