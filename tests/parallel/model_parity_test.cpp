#include "tests/parallel/model_parity.h"
#include "tests/support/slow_tests.h"

// The processes communicate over Gloo, and compute on the CPU.
namespace bellows::parallel::testing {
namespace {

void expect_parity_on_ranks(const std::vector<ParityModel>& kinds, bool all) {
  const auto body = [&](const comm::World& world, const std::string&) {
    for (const ParityModel& kind : kinds) expect_parity_on_this_rank(world, kind, all);
  };
  run_processes(4, body, {.timeout_s = 600, .init = {.backend = comm::Backend::gloo}});
}

TEST(ModelsOnRanks, TwentyStepsWithDropoutAreThoseOfOneProcess) {
  expect_parity_on_ranks({parity_gpt(), parity_encoder_decoder()}, /*all=*/true);
}

TEST(ModelsOnRanks, TwentyStepsOfBertWithAdamWAreThoseOfOneProcess) {
  expect_parity_on_ranks({parity_bert()}, slow_tests());
}

TEST(ModelsOnRanks, TwentyStepsOfAResNetAreThoseOfOneProcess) {
  expect_parity_on_ranks({parity_resnet()}, slow_tests());
}

}  // namespace
}  // namespace bellows::parallel::testing
