#include "tests/parallel/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

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

TEST(Ranks, ASecondGroupIsForASecondThread) {
  run_ranks(3, [](const comm::Group& group) {
    const comm::Group second = comm::duplicate(group, "second");
    EXPECT_EQ(second.name(), "world/second");
    EXPECT_EQ(comm::duplicate(group, "second").name(), "world/second#2");
    const auto sum_of = [](const comm::Group& ranks, int from) {
      double sum = 0;
      for (int i = 0; i < 20; ++i)
        sum += comm::all_reduce(at::full({100}, from + ranks.rank()), ranks)[0].item<double>();
      return sum;
    };
    double other = 0;
    std::thread thread([&] { other = sum_of(second, 10); });
    EXPECT_EQ(sum_of(group, 0), 20 * 3);
    thread.join();
    EXPECT_EQ(other, 20 * 33);
    const auto traffic = comm::traffic(group)["all_reduce"];
    EXPECT_EQ(traffic.calls, 40);
    EXPECT_EQ(traffic.bytes, 40 * 100 * 8);
  });
  run_ranks(1, [](const comm::Group& group) { EXPECT_EQ(comm::duplicate(group, "second").state(), group.state()); });
}

}  // namespace
}  // namespace bellows::parallel::testing
