#include "bellows/inspect/determinism.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace bellows::inspect {
namespace {

TEST(DeterministicGuard, SetsAndPutsBack) {
  at::Context& context = at::globalContext();
  ASSERT_FALSE(context.deterministicAlgorithms());
  const bool cudnn = context.deterministicCuDNN();
  context.setBenchmarkCuDNN(true);
  {
    const DeterministicGuard guard;
    EXPECT_TRUE(context.deterministicAlgorithms());
    EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
    EXPECT_TRUE(context.deterministicCuDNN());
    EXPECT_FALSE(context.benchmarkCuDNN());
    {
      const DeterministicGuard inner({.warn_only = true, .fill_uninitialized_memory = false});
      EXPECT_TRUE(context.deterministicAlgorithmsWarnOnly());
      EXPECT_FALSE(context.deterministicFillUninitializedMemory());
    }
    EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
    EXPECT_TRUE(context.deterministicFillUninitializedMemory());
  }
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_EQ(context.deterministicCuDNN(), cudnn);
  EXPECT_TRUE(context.benchmarkCuDNN());
  context.setBenchmarkCuDNN(false);
}

TEST(DeterministicGuard, FillsUninitialisedMemory) {
  const DeterministicGuard guard;
  EXPECT_TRUE(at::isnan(at::empty({1000})).all().item<bool>());
}

TEST(DeterministicGuard, OperatorWithoutADeterministicKernelThrows) {
  const at::Tensor x = at::ones({4});
  const auto put = [&] { x.put_(at::zeros({2}, at::kLong), at::ones({2}), /*accumulate=*/false); };
  const DeterministicGuard guard;
  EXPECT_THROW(put(), c10::Error);
}

TEST(DeterminismCost, RunsBothModesInTurn) {
  std::vector<bool> modes;
  const RatioInterval cost = measure_determinism_cost(
      [&] {
        modes.push_back(at::globalContext().deterministicAlgorithms());
        at::empty({1 << 16}).fill_(1);
      },
      {.pairs = 3, .steps_per_window = 2});
  const std::vector<bool> expected = {false, true, false, false, true,  true, false,
                                      false, true, true,  false, false, true, true};
  EXPECT_EQ(modes, expected);
  EXPECT_LE(cost.low, cost.ratio);
  EXPECT_LE(cost.ratio, cost.high);
  EXPECT_GT(cost.ratio, 0);
}

TEST(DeterminismCost, FailingStepLeavesTheModeOff) {
  EXPECT_THROW(measure_determinism_cost([] { at::mm(at::ones({2, 3}), at::ones({2, 3})); }), c10::Error);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  EXPECT_THROW(measure_determinism_cost([] {}, {.pairs = 1}), c10::ValueError);
}

}  // namespace
}  // namespace bellows::inspect
