#include "bellows/parallel/sync_batch_norm.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>

#include "bellows/models/resnet.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

Model small_resnet() {
  Model model = models::digits_resnet({.width = 3});
  model.module()->to(at::kDouble);
  uint64_t seed = 40;
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.dim() > 1 || name == "fc.bias") parameter.copy_(numbers(parameter.sizes(), ++seed) * 0.3);
  }
  return model;
}

struct Step {
  at::Tensor x, labels;
};

Step step_of(int number) {
  return {numbers({12, 1, 8, 8}, static_cast<uint64_t>(number) + 1), at::arange(number, number + 12).remainder(10)};
}

/// Sum over the rank's samples over `batch`.
at::Tensor share_of_loss(const at::Tensor& logits, const at::Tensor& labels, double batch) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum) / batch;
}

std::vector<at::Tensor> resnet_alone(int steps) {
  const Model model = small_resnet();
  auto optimizer = sgd(model);
  for (int i = 0; i < steps; ++i) {
    const Step step = step_of(i);
    optimizer.zero_grad();
    share_of_loss(model.forward(step.x), step.labels, 12).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : model.state_dict()) result.push_back(tensor.detach().clone());
  return result;
}

/// Ranks with unequal parts of the batch, under DDP (stage 0) or a sharded optimizer.
void expect_resnet_as_alone(int stage, int steps, const std::vector<at::Tensor>& alone) {
  SCOPED_TRACE(c10::str("stage ", stage));
  const std::vector<int64_t> sizes = {2, 7, 3};  // samples of each rank
  run_ranks(static_cast<int>(sizes.size()), [&](const comm::Group& group) {
    const Model model = small_resnet();
    EXPECT_EQ(convert_sync_batch_norm(model, group), 9);
    std::shared_ptr<torch::optim::Optimizer> optimizer = std::make_shared<torch::optim::SGD>(sgd(model));
    std::optional<DistributedDataParallel> ddp;
    if (stage < 2) ddp.emplace(model, group, DistributedOptions{.bucket_bytes = 3000, .first_bucket_bytes = 500});
    if (stage > 0) optimizer = zero_optimizer(optimizer, model, group, {.stage = stage, .bucket_bytes = 3000});
    for (int i = 0; i < steps; ++i) {
      const Step step = step_of(i);
      const auto x = step.x.split_with_sizes(sizes)[group.rank()];
      const auto labels = step.labels.split_with_sizes(sizes)[group.rank()];
      optimizer->zero_grad();
      share_of_loss(ddp ? ddp->forward(x) : model.forward(x), labels, 12.0 / group.size()).backward();
      optimizer->step();
    }
    std::vector<at::Tensor> result;
    for (const auto& [name, tensor] : model.state_dict()) result.push_back(tensor.detach());
    expect_close(result, alone, 1e-9);
    model.eval();
    EXPECT_TRUE(model.forward(step_of(0).x).isfinite().all().item<bool>());
  });
}

TEST(SyncBatchNorm, TwentyStepsOfAResNetEqualOneProcess) {
  constexpr int steps = 20;
  const auto alone = resnet_alone(steps);
  for (const int stage : {0, 1, 2, 3}) expect_resnet_as_alone(stage, steps, alone);
}

template <class Layer>
Model layer_of(const torch::nn::BatchNormOptions& options, at::ScalarType dtype) {
  Layer layer(options);
  layer->to(dtype);
  const at::NoGradGuard no_grad;
  if (options.affine()) {
    layer->weight.copy_(numbers({5}, 1));
    layer->bias.copy_(numbers({5}, 2));
  }
  return Model::of(layer);
}

/// y, dx, gradients of weight and bias, buffers; of two steps through one layer.
template <class Layer>
std::vector<at::Tensor> through_layer(const Model& model, const at::Tensor& x_all, const at::Tensor& dy_all,
                                      const std::function<at::Tensor(at::Tensor)>& own) {
  std::vector<at::Tensor> result;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = own(x_all * (step + 1)).detach().requires_grad_();
    const at::Tensor y = model.forward(x);
    y.backward(own(dy_all).to(y.scalar_type()));
    result.push_back(y.detach());
    result.push_back(x.grad());
  }
  for (const at::Tensor& gradient : gradients_of(model)) result.push_back(gradient);
  for (const auto& [name, buffer] : model.named_buffers()) result.push_back(buffer.clone());
  return result;
}

/// Parts of 4, 0 and 3 samples against all 7.
template <class Layer>
void expect_layer_as_alone(const torch::nn::BatchNormOptions& options, const at::Tensor& x, double tolerance) {
  const at::Tensor dy = numbers(x.sizes(), 9);
  const Model alone = layer_of<Layer>(options, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const auto expected = through_layer<Layer>(alone, x, dy, [](const at::Tensor& t) { return t; });
  std::vector<std::vector<at::Tensor>> results(3);
  run_ranks(3, [&](const comm::Group& group) {
    const Model model = layer_of<Layer>(options, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_EQ(convert_sync_batch_norm(model, group), 1);
    const auto own = [&](const at::Tensor& t) { return t.split_with_sizes({4, 0, 3})[group.rank()]; };
    results[static_cast<size_t>(group.rank())] = through_layer<Layer>(model, x, dy, own);
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    const bool of_samples = i < 4, summed = !of_samples && options.affine() && i < 6;
    const at::Tensor &a = results[0][i], &b = results[1][i], &c = results[2][i];
    const at::Tensor got = of_samples ? at::cat({a, b, c}) : summed ? a + b + c : c;
    expect_close({got.to(at::kDouble)}, {expected[i].to(at::kDouble)}, tolerance);
  }
}

TEST(SyncBatchNorm, EqualsTheWholeBatchWithUnevenAndEmptyParts) {
  using torch::nn::BatchNormOptions;
  expect_layer_as_alone<torch::nn::BatchNorm1d>(BatchNormOptions(5), numbers({7, 5}, 3), 1e-11);
  expect_layer_as_alone<torch::nn::BatchNorm1d>(BatchNormOptions(5).momentum(std::nullopt), numbers({7, 5, 2}, 3),
                                                1e-11);
  expect_layer_as_alone<torch::nn::BatchNorm2d>(BatchNormOptions(5).affine(false), numbers({7, 5, 3, 2}, 3), 1e-11);
  expect_layer_as_alone<torch::nn::BatchNorm2d>(BatchNormOptions(5).track_running_stats(false),
                                                numbers({7, 5, 3, 2}, 3).contiguous(at::MemoryFormat::ChannelsLast),
                                                1e-11);
  expect_layer_as_alone<torch::nn::BatchNorm3d>(BatchNormOptions(5), numbers({7, 5, 2, 1, 3}, 3) + 1000, 1e-8);
  expect_layer_as_alone<torch::nn::BatchNorm2d>(BatchNormOptions(5), numbers({7, 5, 3, 2}, 3, at::kFloat), 2e-5);
}

TEST(SyncBatchNorm, OneRankAndOtherModelsStayAsTheyAre) {
  run_ranks(1, [](const comm::Group& group) {
    const Model model = small_resnet(), plain = small_resnet();
    EXPECT_EQ(convert_sync_batch_norm(model, group), 9);
    const at::Tensor x = step_of(0).x;
    EXPECT_TRUE(at::equal(model.forward(x), plain.forward(x)));
    EXPECT_EQ(convert_sync_batch_norm(make_model<Layers>().first, group), 0);
  });
  run_ranks(2, [](const comm::Group& group) {
    const auto untellable = torch::nn::BatchNormOptions(5).affine(false).track_running_stats(false);
    EXPECT_THROW(convert_sync_batch_norm(Model::of(torch::nn::BatchNorm1d(untellable)), group), c10::ValueError);
  });
}

}  // namespace
}  // namespace bellows::parallel::testing
