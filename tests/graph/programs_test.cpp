#include "tests/graph/random_program.h"
#include "tests/support/slow_tests.h"

namespace bellows::graph::testing {
namespace {

/// Programs of up to 60 instructions, the same in each run; RC_PARAMS in the environment asks for others.
[[maybe_unused]] const int fixed_seed =
    setenv("RC_PARAMS",
           slow_tests() ? "seed=20261122 max_success=300 max_size=60" : "seed=20261122 max_success=100 max_size=60", 0);

RC_GTEST_PROP(RegionPrograms, LeaveTheSameBits, ()) {
  const auto instructions = *rc::gen::container<std::vector<Instruction>>(instruction());
  const auto make = [&] { return random_program(instructions); };
  const Tensors plain = outcome(make, 6, nullptr);
  Region region;
  const Tensors followed = outcome(make, 6, &region);
  const int differs = first_difference(plain, followed);
  if (differs >= 0) {
    Region again;
    std::vector<std::string> expected, got;
    outcome(make, 6, nullptr, &expected);
    outcome(make, 6, &again, &got);
    RC_LOG() << expected.at(differs) << "\n" << got.at(differs) << "\n" << region.explain().to_text();
    for (const auto& recording : region.recordings()) RC_LOG() << recording.to_text();
  }
  RC_ASSERT(differs == -1);
  RC_TAG(region.explain().followed_calls > 0);
}

}  // namespace
}  // namespace bellows::graph::testing
