#include "bellows/inspect/random_guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include "bellows/core/seed.h"

namespace bellows::inspect {
namespace {

/// The random seed with which libtorch starts.
const uint64_t first_seed = at::detail::getDefaultCPUGenerator().current_seed();

/// The default generator as it is in a program that has not seeded. (seed_everything() marks the process for good: no
/// test of this executable calls it but the one that runs in a process of its own.)
class RandomGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(seeded());
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_current_seed(first_seed);
  }
};

TEST_F(RandomGuardTest, NamesTheOperatorThatDrewUnseeded) {
  const RandomGuard guard;
  try {
    at::randn({3});
    FAIL() << "expected an error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("RandomGuard: expected a seed before the first random operator, but aten::"));
    EXPECT_THAT(error.what(), testing::HasSubstr("randn"));
    EXPECT_THAT(error.what(), testing::HasSubstr("bellows::seed_everything"));
  }
  EXPECT_EQ(at::ones({3}).numel(), 3) << "the next operator works";
}

TEST_F(RandomGuardTest, RefusesBeforeAnythingIsDrawn) {
  const at::Tensor x = at::zeros({5});
  {
    const RandomGuard guard;
    EXPECT_THROW(x.normal_(), c10::ValueError);
    EXPECT_THROW(at::dropout(x, 0.5, true), c10::ValueError);
    EXPECT_THROW(at::randperm(4), c10::ValueError);
    EXPECT_THROW(at::bernoulli(x), c10::ValueError);
  }
  EXPECT_TRUE(at::equal(x, at::zeros({5})));
  EXPECT_EQ(at::randperm(4).numel(), 4) << "the guard has ended";
}

TEST_F(RandomGuardTest, LetsOperatorsPassThatDrawNothing) {
  const RandomGuard guard;
  const at::Tensor x = at::ones({2, 4, 8, 8});
  at::dropout(x, 0.5, /*train=*/false);
  at::dropout(x, 0.0, /*train=*/true);
  at::scaled_dot_product_attention(x, x, x);
  at::relu(x).sum();
}

TEST_F(RandomGuardTest, LetsAGeneratorOfTheCallersPass) {
  const RandomGuard guard;
  at::Generator mine = at::detail::createCPUGenerator(7);
  EXPECT_EQ(at::randn({3}, mine).numel(), 3);
}

TEST_F(RandomGuardTest, ManualSeedInsideTheGuardCounts) {
  const RandomGuard guard;
  EXPECT_THROW(at::rand({3}), c10::ValueError);
  at::manual_seed(42);
  EXPECT_EQ(at::rand({3}).numel(), 3);
}

TEST_F(RandomGuardTest, SeedEverythingInsideTheGuardCounts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const RandomGuard guard;
        bool refused = false;
        try {
          at::rand({3});
        } catch (const c10::ValueError&) {
          refused = true;
        }
        seed_everything(1);
        at::rand({3});
        std::_Exit(refused ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace bellows::inspect
