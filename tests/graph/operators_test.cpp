#include "tests/graph/support.h"
#include "tests/tap/bits_cases.h"

namespace bellows::graph::testing {
namespace {

/// Results and gradients of one way of calling an operator, on other values in each call.
/// Params: region – null for a plain call
Tensors run_case(const tap::testing::BitsCase& one, int call, Region* region) {
  const tap::testing::BitsInputs inputs;
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor leaf : inputs.leaves()) leaf.mul_(1 - 0.03 * call);
  }
  torch::manual_seed(5 + call);
  Tensors all;
  const auto run = [&] { all = one.run_with_backward(inputs); };
  region ? region->run(run) : run();
  for (const auto& leaf : inputs.leaves()) all.push_back(leaf.grad());
  return all;
}

/// The first call of a region has the bits that docs/tap-bits.md speaks of; followed ones have the same. Calls whose program
/// is not expected to be faster run plainly.
TEST(RegionOperators, EachIsFollowedAsItWasRecorded) {
  int followed = 0, all = 0;
  for (const auto* cases : {&tap::testing::pointwise_cases, &tap::testing::reduction_cases,
                            &tap::testing::indexing_cases, &tap::testing::matrix_cases, &tap::testing::network_cases}) {
    for (const auto& one : *cases) {
      Region region;
      for (int call = 0; call < 3; ++call) {
        Region fresh;
        try {
          const int64_t before = region.explain().plain_calls;
          const Tensors found = run_case(one, call, &region);
          const bool was_plain = region.explain().plain_calls > before;
          EXPECT_EQ(first_difference(run_case(one, call, was_plain ? nullptr : &fresh), found), -1)
              << one.name << ", call " << call << "\n"
              << region.explain().to_text();
        } catch (const c10::Error& error) {
          ADD_FAILURE() << one.name << ", call " << call << ": " << error.what_without_backtrace();
        }
      }
      ++all;
      followed += region.explain().followed_calls + region.explain().plain_calls == 2;
    }
  }
  EXPECT_GT(all, 300);
  EXPECT_GT(followed, all * 95 / 100) << "of " << all;
}

}  // namespace
}  // namespace bellows::graph::testing
