// ZeRO-3 whose shards are on the host or in a file while the model computes on the device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/optim/optimizers.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ranks.h"
#include "tests/support/temporary_folder.h"

namespace bellows::parallel {

namespace {

std::vector<at::Tensor> trained_on_device(const comm::Group& group, Offload place, const std::string& folder) {
  at::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(64, 128), torch::nn::Tanh(), torch::nn::Linear(128, 8));
  net->to(at::kCUDA);
  const auto adamw = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-2});
  const auto optimizer = zero_optimizer(adamw, Model::of(net), group,
                                        {.stage = 3,
                                         .bucket_bytes = 16 << 10,
                                         .parameter_dtype = at::kFloat,
                                         .offload_parameters = place,
                                         .offload_state = place,
                                         .offload_folder = folder});
  const at::Tensor x = torch::randn({32, 64}).to(at::kCUDA);
  for (int step = 0; step < 10; ++step) {
    optimizer->zero_grad();
    net->forward(x).square().mean().backward();
    optimizer->step();
  }
  std::vector<at::Tensor> values;
  optimizer->with_full_parameters([&] {
    for (const at::Tensor& parameter : net->parameters()) values.push_back(parameter.detach().to(at::kCPU));
  });
  optimizer->unshard();
  for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.is_cuda());
  return values;
}

}  // namespace

// The host rounds the optimizer step in another way than the device.
TEST(OffloadFromDevice, TrainsLikeShardsOnTheDevice) {
  const TemporaryFolder folder;
  testing::run_ranks(1, [&](const comm::Group& group) {
    const std::vector<at::Tensor> expected = trained_on_device(group, Offload::none, "");
    for (const Offload place : {Offload::host, Offload::file}) {
      const std::vector<at::Tensor> values = trained_on_device(group, place, folder.path());
      ASSERT_EQ(values.size(), expected.size());
      for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::allclose(values[i], expected[i], 1e-4, 1e-5)) << i;
    }
  });
}

}  // namespace bellows::parallel
