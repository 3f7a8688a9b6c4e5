#include "tests/parallel/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bellows/comm/collectives.h"

namespace bellows::parallel::testing {
namespace {

TEST(Ranks, OnThreadsComputeTogether) {
  for (const int count : {1, 2, 3, 4}) {
    std::vector<double> sums(static_cast<size_t>(count));
    run_ranks(count, [&](const comm::Group& group) {
      sums[static_cast<size_t>(group.rank())] = comm::all_reduce(at::ones({1}) * group.rank(), group).item<double>();
    });
    for (const double sum : sums) EXPECT_EQ(sum, count * (count - 1) / 2);
  }
}

TEST(Ranks, WhatARankThrowsIsThrown) {
  EXPECT_THROW(run_ranks(2, [](const comm::Group& group) { TORCH_CHECK_VALUE(group.rank() == 0, "bad"); }), c10::Error);
}

}  // namespace
}  // namespace bellows::parallel::testing
