#include "bellows/tune/study_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/tune/importance.h"
#include "functions.h"

namespace bellows::tune {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

}  // namespace

TEST(Importance, FindsTheParametersThatMatter) {
  Study study({.space = {{real("a", 0, 1), choice("b", {"x", "y"}), real("c", 0, 1)}},
               .objective = "loss",
               .maximize = false,
               .sampler = "random"},
              "", false);
  run_trials(study, 200, [](const Assignment& v) {
    return std::map<std::string, double>{{"loss", v[0] + 0.4 * v[1]}};
  });
  const std::vector<double> shares = parameter_importance(study.options().space, study.trials());
  // The variances of the two terms are 1/12 and 0.04. Ranks and groups change the shares slightly.
  EXPECT_NEAR(shares[0], 0.66, 0.1);
  EXPECT_NEAR(shares[1], 0.33, 0.1);
  EXPECT_LT(shares[2], 0.08);  // four groups of 200 random numbers explain 3/199 on average
  EXPECT_EQ(parameter_importance(study.options().space, {}), std::vector<double>(3));
}

TEST(StudyPage, ShowsTrialsAndEscapesNames) {
  StudyOptions options{.space = {{real("lr", 1e-4, 1, true), choice("name", {"<a>", "b"})}},
                       .objective = "accuracy",
                       .constraints = {{.metric = "memory", .at_most = 1}},
                       .sampler = "random"};
  Study study(options, "", false);
  run_trials(study, 8, [](const Assignment& v) {
    return std::map<std::string, double>{{"accuracy", 1 - v[0]}, {"memory", v[1] * 2}};
  });
  study.tell(study.ask()->number, {.failure = "killed & gone"});
  const std::string page = study_page(study, "my <study>");
  for (const char* words : {"Best accuracy", "my &lt;study&gt;", "&lt;a&gt;", "killed &amp; gone",
                            "Parallel coordinates", "Importance", "violates", "memory at most 1"})
    EXPECT_THAT(page, HasSubstr(words));
  EXPECT_THAT(page, Not(HasSubstr("<a>")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  const Study empty(options, "", false);
  EXPECT_THAT(study_page(empty, "empty"), HasSubstr("No trial is complete"));
}

}  // namespace bellows::tune
