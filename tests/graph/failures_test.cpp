// What a region leaves where the user's code or a kernel throws.

#include "tests/graph/support.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

TEST(RegionFailures, ExceptionsInTheMiddleLeaveWhatRanBefore) {
  Region region;
  const at::Tensor x = torch::zeros({1});
  for (int call = 0; call < 4; ++call) {
    at::Tensor seen;
    const auto body = [&] {
      x.add_(1);
      seen = x * 1;
      if (call % 2) throw std::domain_error("the user's own");
      x.add_(1);
    };
    if (call % 2) {
      EXPECT_THROW(region.run(body), std::domain_error);
    } else {
      region.run(body);
    }
    EXPECT_EQ(seen.item<double>(), call / 2 * 3 + (call % 2 ? 3 : 1));
  }
  EXPECT_EQ(x.item<double>(), 6);
  EXPECT_EQ(region.explain().mismatches, 0);
}

TEST(RegionFailures, ErrorsOfDeferredKernelsSayThatTheyAreLate) {
  Region region;
  const at::Tensor w = torch::rand({4, 2}), x = torch::zeros({1});
  bool reached = false;
  at::Tensor row, sum;
  const auto look_up = [&](int64_t index) {
    region.run([&] {
      x.add_(1);
      const at::Tensor before = x * 2;
      row = at::embedding(w, torch::full({1}, index, at::kLong));
      reached = true;
      sum = row.sum() + before;
      x.add_(10);
    });
  };
  look_up(1);
  reached = false;
  const std::string error = error_of([&] { look_up(9); });
  EXPECT_TRUE(reached);
  EXPECT_THAT(error, HasSubstr("index out of range"));
  EXPECT_THAT(error, HasSubstr("Running aten::embedding, which was called earlier in its region"));
  EXPECT_EQ(x.item<double>(), 12);  // what came before has run, what came after has not
  EXPECT_THAT(error_of([&] { sum.data_ptr(); }), HasSubstr("failed before it was computed"));
  EXPECT_THAT(error_of([&] { sum + 1; }), HasSubstr("failed before it was computed"));
  look_up(2);
  EXPECT_EQ(x.item<double>(), 23);
  EXPECT_TRUE(at::equal(row[0], w[2]));
}

TEST(RegionFailures, ResultsHaveTheValuesFromBeforeTheFailure) {
  Region region;
  const at::Tensor w = torch::rand({4, 2}), x = torch::rand({3});
  at::Tensor made, row;
  const auto look_up = [&](int64_t index) {
    region.run([&] {
      made = x * 2;
      row = at::embedding(w, torch::full({1}, index, at::kLong));
      made.add_(1);
    });
  };
  look_up(1);
  EXPECT_TRUE(at::equal(made, x * 2 + 1));
  EXPECT_NE(error_of([&] { look_up(9); }), "");
  if (Region::runs_programs()) return;  // they may compute `made` in another order
  EXPECT_TRUE(at::equal(made, x * 2));
}

TEST(RegionFailures, AFailureInTheMiddleMayBeCaughtInside) {
  Region region;
  const at::Tensor w = torch::rand({4, 2});
  for (const int64_t index : {1, 9, 2, 9}) {
    double value = 0;
    region.run([&] {
      const at::Tensor found = at::embedding(w, torch::full({1}, index, at::kLong)).sum();
      try {
        value = found.item<double>();
      } catch (const c10::IndexError&) {
        value = torch::full({}, -1.0).mul(2).item<double>();
      }
      EXPECT_THROW(at::mm(w, w), c10::Error);  // never recorded, refused each time
    });
    EXPECT_EQ(value == -2, index == 9);
  }
}

}  // namespace
}  // namespace bellows::graph::testing
