#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "bellows/serve/batch_invariance.h"
#include "tests/serve/requests.h"
#include "tests/support/errors.h"

namespace bellows::serve {

namespace {

using ::testing::HasSubstr;

/// A model whose results depend on the number of rows for some sizes, and that records its calls.
struct RowDependentModel {
  std::set<int64_t> other_bits{};  ///< sizes of batches with other bits than a single row
  std::vector<int64_t> calls{};

  RunModel function() {
    return [this](std::span<const at::Tensor> inputs) {
      const at::Tensor x = inputs[0].to(at::kFloat);
      calls.push_back(x.size(0));
      at::Tensor sum = x.sum(1);
      if (other_bits.contains(x.size(0))) sum = sum * (1 + 1e-7);
      return std::vector<at::Tensor>{sum, x};
    };
  }
  std::vector<int64_t> take_calls() { return std::exchange(calls, {}); }
};

std::vector<at::Tensor> run(const RunModel& model, at::Tensor input) {
  return model(std::vector<at::Tensor>{std::move(input)});
}

at::Tensor alone(const RunModel& model, const at::Tensor& input) {
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < input.size(0); ++row) rows.push_back(run(model, input.narrow(0, row, 1).clone())[0]);
  return at::cat(rows);
}

}  // namespace

TEST(BatchInvariance, RunsWholeBatchesThatChangeNoBits) {
  RowDependentModel model;
  BatchInvariance invariance(one_input().inputs);
  const RunModel checked = invariance.instance(model.function());
  const at::Tensor input = at::randn({5, 7});
  EXPECT_TRUE(run(checked, input)[0].equal(input.sum(1)));
  EXPECT_EQ(model.take_calls(), (std::vector<int64_t>{5, 1, 1, 1, 1, 1, 5}));  // the check, and then the batch
  run(checked, input);
  EXPECT_EQ(model.take_calls(), std::vector<int64_t>{5});
  run(checked, at::randn({4, 7}));
  EXPECT_EQ(model.take_calls(), (std::vector<int64_t>{4, 4}));  // single rows are known
  run(checked, at::randn({2, 9}));
  EXPECT_EQ(model.take_calls(), (std::vector<int64_t>{2, 1, 1, 2}));  // of another size
}

TEST(BatchInvariance, DividesBatchesThatChangeBits) {
  RowDependentModel model{.other_bits = {3, 6, 7}};
  BatchInvariance invariance(one_input().inputs);
  const RunModel checked = invariance.instance(model.function());
  const at::Tensor input = at::randn({7, 33});
  const std::vector<at::Tensor> first = run(checked, input);
  model.take_calls();
  const std::vector<at::Tensor> second = run(checked, input);
  EXPECT_EQ(model.take_calls(), (std::vector<int64_t>{1, 2, 4}));  // 7 = 3 + 4, and 3 = 1 + 2
  for (const auto& outputs : {first, second}) {
    EXPECT_TRUE(outputs[0].equal(alone(checked, input)));
    EXPECT_TRUE(outputs[1].equal(input));
  }
}

TEST(BatchInvariance, HoldsForMatmulsOfLibtorch) {
  const at::Tensor weight = at::randn({70, 300});
  BatchInvariance invariance(one_input().inputs);
  const RunModel checked = invariance.instance([&](std::span<const at::Tensor> inputs) {
    return std::vector<at::Tensor>{at::linear(inputs[0], weight).softmax(1)};
  });
  const at::Tensor input = at::randn({40, 300}), expected = alone(checked, input);
  for (const int64_t rows : {2, 3, 7, 8, 13, 16, 31, 32, 33, 40})
    EXPECT_TRUE(run(checked, input.narrow(0, 0, rows))[0].equal(expected.narrow(0, 0, rows))) << rows;
}

TEST(BatchInvariance, AlignsInputs) {
  BatchInvariance invariance(one_input().inputs);
  const RunModel checked = invariance.instance([](std::span<const at::Tensor> inputs) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(inputs[0].const_data_ptr()) % 64, 0U);
    return std::vector<at::Tensor>{inputs[0] + 1};
  });
  const at::Tensor input = at::randn({8, 3}).view({-1}).slice(0, 3).view({7, 3});
  EXPECT_TRUE(run(checked, input)[0].equal(input + 1));
}

TEST(BatchInvariance, ChecksIntegersWithValidTokens) {
  BatchInvariance invariance(one_input(c10::kLong).inputs);
  const at::Tensor table = at::randn({2, 4});
  const RunModel checked = invariance.instance([&](std::span<const at::Tensor> inputs) {
    return std::vector<at::Tensor>{at::embedding(table, inputs[0]).sum(1)};
  });
  EXPECT_EQ(run(checked, at::ones({3, 5}, at::kLong))[0].sizes(), (std::vector<int64_t>{3, 4}));
}

TEST(BatchInvariance, RefusesInstancesThatDiffer) {
  RowDependentModel first, second{.other_bits = {1}};
  BatchInvariance invariance(one_input().inputs);
  const RunModel one = invariance.instance(first.function()), other = invariance.instance(second.function());
  run(one, at::randn({1, 33}));
  EXPECT_THAT(message_of([&] {
                run(other, at::randn({1, 33}));
              }),
              HasSubstr("two instances of the model return different bits"));
}

TEST(BatchInvariance, PassesOtherOutputsOn) {
  BatchInvariance invariance(one_input().inputs);
  const RunModel checked =
      invariance.instance([](std::span<const at::Tensor> inputs) { return std::vector<at::Tensor>{inputs[0].sum()}; });
  EXPECT_EQ(run(checked, at::randn({2, 3}))[0].dim(), 0);  // the caller reports it
}

}  // namespace bellows::serve
