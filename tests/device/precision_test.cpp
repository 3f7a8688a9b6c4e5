// Autocast on the GPU: dtypes, cached casts, and values near fp32's.
#include <gtest/gtest.h>

#include "bellows/amp/autocast.h"
#include "tests/device/support.h"

namespace bellows::amp {

using test::gpu;

TEST(AutocastOnDevice, RunsMatmulsInItsTypeAndLossesInFp32) {
  torch::manual_seed(1);
  torch::nn::Linear linear(256, 128);
  linear->to(gpu);
  const at::Tensor x = torch::randn({64, 256}, gpu),
                   target = torch::randint(128, {64}, at::TensorOptions(at::kLong).device(gpu));
  const at::Tensor exact = linear(x);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor y, loss;
    {
      const AutocastGuard guard(at::kCUDA, dtype);
      y = linear(x);
      loss = torch::nn::functional::cross_entropy(y, target);
      EXPECT_EQ(torch::softmax(y, 1).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_EQ(linear(x).scalar_type(), at::kFloat) << "the guard ended";
    linear->zero_grad();
    loss.backward();
    EXPECT_EQ(linear->weight.grad().scalar_type(), at::kFloat);
    EXPECT_LE(test::relative_error(y.detach().to(at::kCPU, at::kDouble), exact.detach().to(at::kCPU, at::kDouble)),
              dtype == at::kHalf ? 1e-3 : 8e-3);
  }
}

TEST(AutocastOnDevice, OffIsPlain) {
  torch::manual_seed(2);
  torch::nn::Linear linear(32, 32);
  linear->to(gpu);
  const at::Tensor x = torch::randn({8, 32}, gpu), plain = linear(x);
  const AutocastGuard outer(at::kCUDA, at::kBFloat16);
  const AutocastGuard inner(at::kCUDA, at::kBFloat16, /*enabled=*/false);
  EXPECT_TRUE(at::equal(linear(x), plain));
}

}  // namespace bellows::amp
