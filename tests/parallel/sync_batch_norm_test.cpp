#include "bellows/parallel/sync_batch_norm.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>

#include "bellows/comm/mesh.h"
#include "bellows/models/resnet.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

Model small_resnet(at::ScalarType dtype = at::kDouble) {
  Model model = models::digits_resnet({.width = 3});
  model.module()->to(dtype);
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

/// Losses, parameters and buffers.
struct ResNetRun {
  std::vector<double> losses;
  std::vector<at::Tensor> state;
};

/// Params: own   – selects this process's part of a batch
///         batch – divisor of the loss
ResNetRun train_resnet(const Model& model, const std::function<at::Tensor(const at::Tensor&)>& forward,
                       torch::optim::Optimizer& optimizer, int steps,
                       const std::function<at::Tensor(const at::Tensor&)>& own, double batch) {
  ResNetRun result;
  for (int i = 0; i < steps; ++i) {
    const Step step = step_of(i);
    optimizer.zero_grad();
    const at::Tensor x = own(step.x).to(model.parameters().front().scalar_type());
    const at::Tensor loss = share_of_loss(forward(x), own(step.labels), batch);
    result.losses.push_back(loss.item<double>());
    loss.backward();
    optimizer.step();
  }
  for (const auto& [name, tensor] : model.state_dict()) result.state.push_back(tensor.detach().clone());
  return result;
}

ResNetRun resnet_alone(int steps, at::ScalarType dtype) {
  const Model model = small_resnet(dtype);
  auto optimizer = sgd(model);
  return train_resnet(
      model, [&](const at::Tensor& x) { return model.forward(x); }, optimizer, steps,
      [](const at::Tensor& whole) { return whole; }, 12);
}

struct ResNetMethod {
  int stage;  ///< of ZeRO; 0: DDP
  bool hybrid = false;
};

/// On ranks with unequal parts of the batch.
ResNetRun resnet_on_rank(const ResNetMethod& method, int steps, at::ScalarType dtype, const std::vector<int64_t>& sizes,
                         const comm::Group& group) {
  const Model model = small_resnet(dtype);
  EXPECT_EQ(convert_sync_batch_norm(model, group), 9);
  std::shared_ptr<torch::optim::Optimizer> optimizer = std::make_shared<torch::optim::SGD>(sgd(model));
  std::optional<DistributedDataParallel> ddp;
  std::optional<comm::Mesh> mesh;
  if (method.hybrid) mesh.emplace(group, std::vector<comm::MeshAxis>{{"data", 2}, {"shard", 2}});
  if (method.stage < 2) ddp.emplace(model, group, DistributedOptions{.bucket_bytes = 3000, .first_bucket_bytes = 500});
  if (method.stage > 0) {
    ShardOptions options{.stage = method.stage, .bucket_bytes = 3000};
    if (mesh) options.replicas = mesh->group("data");
    optimizer = zero_optimizer(optimizer, model, mesh ? mesh->group("shard") : group, options);
  }
  const auto forward = [&](const at::Tensor& x) { return ddp ? ddp->forward(x) : model.forward(x); };
  const auto own = [&](const at::Tensor& whole) { return whole.split_with_sizes(sizes)[group.rank()]; };
  ResNetRun result = train_resnet(model, forward, *optimizer, steps, own, 12.0 / group.size());
  model.eval();
  EXPECT_TRUE(model.forward(step_of(0).x.to(dtype)).isfinite().all().item<bool>());
  return result;
}

/// Params: tolerance – relative to the largest value of a tensor
void expect_resnet_as_alone(const ResNetMethod& method, int steps, at::ScalarType dtype, const ResNetRun& alone,
                            double tolerance) {
  SCOPED_TRACE(c10::str("stage ", method.stage, method.hybrid ? " hybrid, " : ", ", dtype));
  const std::vector<int64_t> sizes = method.hybrid ? std::vector<int64_t>{2, 5, 1, 4} : std::vector<int64_t>{2, 7, 3};
  const auto ranks = static_cast<double>(sizes.size());
  std::vector<ResNetRun> runs(sizes.size());
  run_ranks(static_cast<int>(sizes.size()), [&](const comm::Group& group) {
    runs[static_cast<size_t>(group.rank())] = resnet_on_rank(method, steps, dtype, sizes, group);
  });
  for (size_t i = 0; i < alone.losses.size(); ++i) {
    double mean = 0;
    for (const ResNetRun& run : runs) mean += run.losses[i] / ranks;
    EXPECT_NEAR(mean, alone.losses[i], tolerance * alone.losses[i]) << "step " << i;
  }
  for (const ResNetRun& run : runs) {
    ASSERT_EQ(run.state.size(), alone.state.size());
    for (size_t i = 0; i < alone.state.size(); ++i) {
      const at::Tensor expected = alone.state[i].to(at::kDouble);
      const double largest = (run.state[i].to(at::kDouble) - expected).abs().max().item<double>();
      EXPECT_LE(largest, tolerance * expected.abs().max().item<double>()) << "tensor " << i;
    }
  }
}

TEST(SyncBatchNorm, TwentyStepsOfAResNetEqualOneProcess) {
  constexpr int steps = 20;
  const ResNetRun alone = resnet_alone(steps, at::kDouble);
  for (const ResNetMethod& method : {ResNetMethod{0}, {1}, {2}, {3}, {3, true}})
    expect_resnet_as_alone(method, steps, at::kDouble, alone, 1e-9);
  // In fp32, statistics of the parts are rounded, and an activation near 0 may pass ReLU on one side only.
  const ResNetRun in_fp32 = resnet_alone(steps, at::kFloat);
  for (const ResNetMethod& method : {ResNetMethod{2}, {3, true}})
    expect_resnet_as_alone(method, steps, at::kFloat, in_fp32, 1e-3);
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
