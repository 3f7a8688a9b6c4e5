// The tests of tests/parallel/model_parity_test.cpp with NCCL, on as many ranks as there are GPUs.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include "tests/parallel/model_parity.h"

namespace bellows::parallel::testing {
namespace {

int gpu_count() {
  return at::hasCUDA() ? at::accelerator::deviceCount() : 0;
}

class NcclOnRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    // tests/device/CMakeLists.txt searches for this text, so that ctest does not count the test as passed.
    if (gpu_count() < 2) GTEST_SKIP() << "NCCL tests need at least 2 GPUs, got " << gpu_count();
    at::globalContext().setAllowTF32CuDNN(false);  // its rounding is larger than the tolerances
  }
  static void expect_parity_of(const ParityModel& kind) {
    run_processes(gpu_count(),
                  [&](const comm::World& world, const std::string&) {
                    ASSERT_EQ(world.backend(), "nccl");
                    ASSERT_EQ(world.device(), c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(world.rank())));
                    expect_parity_on_this_rank(world, kind, /*all=*/true);
                  },
                  {.timeout_s = 600, .init = {.backend = comm::Backend::nccl}});
  }
};

TEST_F(NcclOnRanks, TwentyStepsOfGptAreThoseOfOneProcess) {
  expect_parity_of(parity_gpt());
}

TEST_F(NcclOnRanks, TwentyStepsOfAnEncoderDecoderAreThoseOfOneProcess) {
  expect_parity_of(parity_encoder_decoder());
}

TEST_F(NcclOnRanks, TwentyStepsOfBertWithAdamWAreThoseOfOneProcess) {
  expect_parity_of(parity_bert());
}

TEST_F(NcclOnRanks, TwentyStepsOfAResNetAreThoseOfOneProcess) {
  expect_parity_of(parity_resnet());
}

}  // namespace
}  // namespace bellows::parallel::testing
