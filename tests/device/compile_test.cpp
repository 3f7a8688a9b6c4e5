// Compiled functions that get tensors of the GPU: the values and gradients of eager code.
#include <gtest/gtest.h>

#include "bellows/compile.h"
#include "tests/device/support.h"

namespace bellows {

using test::gpu;

TEST(CompileOnDevice, ForwardAndStepEqualEager) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  net->to(gpu);
  const at::Tensor x = torch::randn({32, 64}, gpu),
                   y = torch::randint(10, {32}, at::TensorOptions(at::kLong).device(gpu));
  const auto step = [&](const at::Tensor& in, const at::Tensor& target) {
    net->zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(in), target);
    loss.backward();
    return loss.detach();
  };
  const at::Tensor loss = step(x, y);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : net->parameters()) gradients.push_back(p.grad().clone());
  auto compiled = compile(step);
  for (int call = 0; call < 4; ++call) {
    const at::Tensor ours = compiled(x, y);
    EXPECT_TRUE(at::allclose(ours, loss, 1e-5, 1e-6)) << "call " << call;
    for (size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), gradients[i], 1e-4, 1e-6)) << "call " << call << ", " << i;
  }
}

}  // namespace bellows
