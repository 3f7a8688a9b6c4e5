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

// Under no difference the 90 % interval must exclude 1 about one time in ten.
TEST(Stats, IntervalCoversNinetyPercent) {
  RandomStream random(5);
  const auto noise = [&] {  // a sum of 12 uniforms is normal enough
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.uniform();
    return std::exp(0.1 * sum);
  };
  int excluded = 0;
  constexpr int rounds = 4000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> a(5), b(5);
    for (auto& value : a) value = noise();
    for (auto& value : b) value = noise();
    excluded += paired_ratio(a, b).excludes_one();
  }
  EXPECT_NEAR(excluded / double{rounds}, 0.10, 0.02);  // four standard deviations are 0.019
}

TEST(Stats, FormatsForPeople) {
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(12.3 * 1024 * 1024), "12.3 MiB");
  EXPECT_EQ(format_seconds(0.0131), "13.1 ms");
  EXPECT_EQ(format_seconds(125), "2 min 05 s");
}

}  // namespace bellows
