#include "bellows/core/stats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bellows/core/error.h"
#include "bellows/core/seed.h"

namespace bellows {

TEST(Stats, MedianAndQuantile) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.25), 2.5);
  EXPECT_THROW(median({}), c10::ValueError);
  EXPECT_THROW(quantile({1}, 1.5), c10::ValueError);
}

// Checked by hand: logs of 2, 4 have mean ln(sqrt 8), standard error ln(2)/2, t(1) = 6.314.
TEST(Stats, PairedRatioMatchesTheFormula) {
  const RatioInterval result = paired_ratio({2, 4}, {1, 1});
  EXPECT_NEAR(result.ratio, std::sqrt(8.0), 1e-12);
  EXPECT_NEAR(result.low, std::sqrt(8.0) * std::exp(-6.314 * std::log(2.0) / 2), 1e-9);
  EXPECT_FALSE(result.excludes_one());
  const RatioInterval sure = paired_ratio({2.0, 2.02, 1.98, 2.01, 1.99}, {1, 1, 1, 1, 1});
  EXPECT_TRUE(sure.excludes_one());
  EXPECT_THROW(paired_ratio({1}, {1}), c10::ValueError);
  EXPECT_THROW(paired_ratio({1, 2}, {1, 0}), c10::ValueError);
}

// Of five pairs the interval spans all averages of two; of six, tables give the third from either end.
TEST(Stats, PairedRatioByRanks) {
  const RatioInterval five = paired_ratio({1, 2, 4, 8, 16}, {1, 1, 1, 1, 1});
  EXPECT_NEAR(five.ratio, 4, 1e-12);
  EXPECT_NEAR(five.low, 1, 1e-12);
  EXPECT_NEAR(five.high, 16, 1e-12);
  const RatioInterval six = paired_ratio({1, 2, 4, 8, 16, 32}, {1, 1, 1, 1, 1, 1});
  EXPECT_NEAR(six.low, 2, 1e-12);  // 1, 2^0.5, 2
  EXPECT_NEAR(six.high, 16, 1e-12);
}

// One window that another program spoiled must not hide a difference that all the others show.
TEST(Stats, OneSpoiledPairOfElevenCountsForLittle) {
  const std::vector<double> b(11, 1.0);
  const RatioInterval result = paired_ratio({1.2, 1.21, 1.19, 1.2, 1.22, 1.18, 1.2, 1.21, 1.19, 1.2, 0.1}, b);
  EXPECT_NEAR(result.ratio, 1.2, 0.02);
  EXPECT_GT(result.low, 1.15);
}

TEST(Stats, PairedDifference) {
  const DifferenceInterval result = paired_difference({11, 12, 13, 14, 15}, {10, 10, 10, 10, 10});
  EXPECT_DOUBLE_EQ(result.difference, 3);
  EXPECT_DOUBLE_EQ(result.low, 1);
  EXPECT_DOUBLE_EQ(result.high, 5);
  EXPECT_THROW(paired_difference({1, 2, 3, 4}, {1, 2, 3, 4}), c10::ValueError);
}

// Under no difference the interval may exclude 1 at most one time in ten; ranks of few pairs are somewhat stricter.
TEST(Stats, IntervalCoversNinetyPercent) {
  RandomStream random(5);
  const auto noise = [&] {  // a sum of 12 uniforms is normal enough
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.uniform();
    return std::exp(0.1 * sum);
  };
  constexpr int rounds = 4000;
  for (const auto& [pairs, expected] : {std::pair<size_t, double>{4, 0.1}, {5, 2 / 32.0}, {9, 2 * 25 / 512.0}}) {
    int excluded = 0;
    for (int round = 0; round < rounds; ++round) {
      std::vector<double> a(pairs), b(pairs);
      for (auto& value : a) value = noise();
      for (auto& value : b) value = noise();
      excluded += paired_ratio(a, b).excludes_one();
    }
    EXPECT_NEAR(excluded / double{rounds}, expected, 0.02) << pairs;  // four standard deviations are 0.019
  }
}

TEST(Stats, FormatsForPeople) {
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(12.3 * 1024 * 1024), "12.3 MiB");
  EXPECT_EQ(format_seconds(0.0131), "13.1 ms");
  EXPECT_EQ(format_seconds(125), "2 min 05 s");
}

}  // namespace bellows
