#include "bellows/core/seed.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"

namespace bellows {

TEST(Seed, SeedEverythingRepeatsTorchsNumbers) {
  seed_everything(7);
  EXPECT_TRUE(seeded());
  const at::Tensor first = torch::randn({100});
  seed_everything(7);
  EXPECT_TRUE(torch::equal(first, torch::randn({100})));
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(first, torch::randn({100}))) << "the same as torch's own seeding";
}

// Written down once: a checkpoint made elsewhere resumes in the same order.
TEST(Seed, StreamsAreTheSameOnEveryMachine) {
  EXPECT_EQ(RandomStream(0).next(), 0xe220a8397b1dcdafULL) << "splitmix64's published first value for seed 0";
  EXPECT_EQ(random_permutation(5, 1), random_permutation(5, 1));
  EXPECT_NE(mix_seed(1, 2, 3), mix_seed(1, 3, 2));
  EXPECT_NE(mix_seed(0, 0), mix_seed(0, 1));
}

TEST(Seed, RanksOfNeighbouringSeedsHaveStreamsOfTheirOwn) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(rank_seed(seed, 0), seed) << "one process draws what it always drew";
    for (int rank = 0; rank < 16; ++rank) seeds.insert(rank_seed(seed, rank));
  }
  EXPECT_EQ(seeds.size(), 1600u);
}

TEST(Seed, PermutationHoldsEveryIndexOnce) {
  for (const int64_t n : {0, 1, 2, 17, 1000}) {
    const auto order = random_permutation(n, 42);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), static_cast<size_t>(n));
  }
  EXPECT_THROW(random_permutation(-1, 0), c10::ValueError);
}

TEST(Seed, BelowIsUniformAndBounded) {
  RandomStream random(3);
  std::vector<int> counts(6);
  for (int i = 0; i < 60'000; ++i) ++counts[random.below(6)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);  // five standard deviations are 456
  EXPECT_THROW(random.below(0), c10::ValueError);
  for (int i = 0; i < 1000; ++i) {
    const double value = random.uniform();
    EXPECT_GE(value, 0.0);
    EXPECT_LT(value, 1.0);
  }
}

TEST(Device, ParseNamesWhatIsWrongAndWhatIsThere) {
  EXPECT_TRUE(parse_device("cpu").is_cpu());
  EXPECT_THROW(parse_device("gpu0"), c10::ValueError);
  if (!torch::cuda::is_available()) {
    try {
      parse_device("cuda:1");
      FAIL();
    } catch (const c10::ValueError& error) {
      EXPECT_NE(user_message(error).find("the CPU only"), std::string::npos);
    }
  }
  synchronize(c10::kCPU);
  empty_cache();
}

// The documented difference: no_grad's tensors may be changed in place and join autograd later, inference mode's may not.
TEST(GradMode, NoGradAndInferenceModeDiffer) {
  const at::Tensor weight = torch::ones({2}, torch::requires_grad());
  at::Tensor ordinary, frozen;
  {
    const no_grad guard;
    ordinary = weight * 2;
    ordinary.add_(1);
    EXPECT_FALSE(ordinary.requires_grad());
  }
  ordinary.add_(1);
  EXPECT_NO_THROW((weight * ordinary).sum().backward());
  {
    const inference_mode guard;
    frozen = weight * 2;
    frozen.add_(1);
    EXPECT_TRUE(frozen.is_inference());
  }
  EXPECT_THROW(frozen.add_(1), c10::Error);
  EXPECT_THROW(weight * frozen, c10::Error) << "cannot be saved for backward";
  EXPECT_THROW(frozen._version(), c10::Error) << "has no version counter";
  EXPECT_EQ(ordinary._version(), 2);
}

}  // namespace bellows
