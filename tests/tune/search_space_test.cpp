#include "bellows/tune/search_space.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "bellows/core/seed.h"
#include "functions.h"

namespace bellows::tune {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string problem(const SearchSpace& space) {
  try {
    space.check();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace

TEST(SearchSpace, RejectsUnusableRanges) {
  EXPECT_THAT(problem({}), HasSubstr("the search space is empty"));
  EXPECT_THAT(problem({{real("lr", 1, 0.1)}}), HasSubstr("lr: expected a range"));
  EXPECT_THAT(problem({{real("lr", 0, 1, true)}}), HasSubstr("a logarithmic range must start above 0, got 0"));
  EXPECT_THAT(problem({{integer("epochs", 1.5, 3)}}), HasSubstr("needs integers as its ends"));
  EXPECT_THAT(problem({{choice("optimizer", {})}}), HasSubstr("optimizer: the list of values is empty"));
  EXPECT_THAT(problem({{choice("optimizer", {"sgd", "sgd"})}}), HasSubstr("a value occurs twice"));
  EXPECT_THAT(problem({{real("lr", 0, 1), real("lr", 0, 1)}}), HasSubstr("contains lr twice"));
  Parameter wide_step = real("lr", 0, 1);
  wide_step.step = 2;
  EXPECT_THAT(problem({{wide_step}}), HasSubstr("lr: step must be positive"));
  Parameter no_points = real("lr", 0, 1);
  no_points.points = 0;
  EXPECT_THAT(problem({{no_points}}), HasSubstr("lr: points must be at least 1, got 0"));
  EXPECT_EQ(problem(mixed_space()), "");
}

TEST(SearchSpace, CountsConfigurations) {
  EXPECT_EQ(mixed_space().count(), 0);  // the learning rate is continuous
  EXPECT_EQ((SearchSpace{{integer("a", 2, 5), choice("b", {"x", "y"})}}).count(), 8);
  EXPECT_EQ((SearchSpace{{integer("a", 0, 9e9), integer("b", 0, 9e9)}}).count(), 1'000'000'000'000'000);
}

TEST(SearchSpace, GridHasAllValues) {
  EXPECT_THAT(integer("a", 2, 4).grid(), ElementsAre(2, 3, 4));
  Parameter rate = real("lr", 0.001, 0.1, true);
  rate.points = 3;
  EXPECT_THAT(rate.grid(), ElementsAre(0.001, 0.01, 0.1));
  Parameter stepped = real("dropout", 0, 0.5);
  stepped.step = 0.25;
  EXPECT_THAT(stepped.grid(), ElementsAre(0, 0.25, 0.5));
  const SearchSpace space{{integer("a", 0, 1), choice("b", {"x", "y", "z"})}};
  EXPECT_EQ(space.grid_count(), 6);
  EXPECT_THAT(space.grid_point(4), ElementsAre(1, 1));
  EXPECT_EQ(space.text(space.grid_point(4)), "a=1 b=y");
}

TEST(SearchSpace, DrawsStayInRangeAndCoverIt) {
  SearchSpace space = mixed_space();
  Parameter stepped = real("dropout", 0.1, 0.55);  // the last value is 0.5
  stepped.step = 0.1;
  space.parameters.push_back(stepped);
  RandomStream random(3);
  std::vector<std::set<double>> seen(space.parameters.size());
  double below_a_thousandth = 0;
  for (int i = 0; i < 2000; ++i) {
    const Assignment values = space.draw(random);
    for (size_t p = 0; p < values.size(); ++p) {
      EXPECT_GE(values[p], space.parameters[p].low);
      EXPECT_LE(values[p], space.parameters[p].high);
      seen[p].insert(values[p]);
    }
    below_a_thousandth += values[0] < 1e-3;
  }
  EXPECT_EQ(seen[1].size(), 12u);
  EXPECT_EQ(seen[3].size(), 3u);
  EXPECT_EQ(seen[4].size(), 5u);
  EXPECT_NEAR(below_a_thousandth / 2000, 0.4, 0.06);  // two of five decades, five standard deviations
}

}  // namespace bellows::tune
