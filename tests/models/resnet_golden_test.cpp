#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "bellows/models/resnet.h"
#include "tests/models/golden.h"

namespace bellows::models {

namespace {

using Json = nlohmann::ordered_json;

// Agreement with the golden's digest of a tensor: |difference| ≤ absolute + relative · |value|. Sums over n values,
// whose errors add up, are compared on the scale of the sum of absolute values.
struct Tolerance {
  double relative, absolute;
};

void expect_near(double ours, double golden, double scale, Tolerance tolerance, const std::string& what) {
  EXPECT_LE(std::abs(ours - golden), tolerance.absolute + tolerance.relative * scale)
      << what << ": " << ours << " vs " << golden;
}

void expect_digest(const std::string& name, const at::Tensor& tensor, const Json& golden, Tolerance tolerance) {
  const at::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous().flatten();
  const double magnitude = golden.at("abs").get<double>();
  const double mean = magnitude / static_cast<double>(flat.numel());
  expect_near(flat.sum().item<double>(), golden.at("sum").get<double>(), magnitude, tolerance, name + " sum");
  expect_near(flat.abs().sum().item<double>(), magnitude, magnitude, tolerance, name + " sum of absolute values");
  const auto positions = formula_positions(name, flat.numel());
  ASSERT_EQ(golden.at("samples").size(), positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    const double expected = golden.at("samples")[i].get<double>();
    expect_near(flat[positions[i]].item<double>(), expected, std::max(std::abs(expected), mean), tolerance,
                name + "[" + std::to_string(positions[i]) + "]");
  }
}

// The same tensors under the same names in the same order.
void expect_digests(const NamedTensors& tensors, const Json& golden, Tolerance tolerance) {
  ASSERT_EQ(tensors.size(), golden.size());
  auto expected = golden.begin();
  for (const auto& [name, tensor] : tensors) {
    ASSERT_EQ(name, expected.key());
    expect_digest(name, tensor, *expected, tolerance);
    ++expected;
  }
}

void expect_values(const at::Tensor& tensor, const Json& golden, Tolerance tolerance, const std::string& what) {
  const at::Tensor flat = tensor.detach().to(torch::kFloat64).flatten();
  ASSERT_EQ(static_cast<size_t>(flat.numel()), golden.size());
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double expected = golden[static_cast<size_t>(i)].get<double>();
    expect_near(flat[i].item<double>(), expected, std::abs(expected), tolerance, what + "[" + std::to_string(i) + "]");
  }
}

NamedTensors gradients_of(const Model& model) {
  NamedTensors result;
  for (const auto& [name, parameter] : model.named_parameters()) result.emplace_back(name, parameter.grad());
  return result;
}

struct Run {
  Json golden;
  Model model = resnet18({.num_classes = 10});
  torch::Dtype dtype;

  Run(const std::string& file, torch::Dtype dtype_) : golden(golden::read(file)), dtype(dtype_) {
    set_formula_weights(model);
    model.module()->to(dtype);
  }

  int64_t integer(const char* key) const { return golden.at(key).get<int64_t>(); }
  at::Tensor input(int64_t step) const {
    const int64_t size = integer("size"), batch = integer("batch");
    return formula_uniform("input" + std::to_string(step % integer("batches")), {batch, 3, size, size}).to(dtype);
  }
  at::Tensor labels(int64_t step) const {
    return formula_labels("labels" + std::to_string(step % integer("batches")), integer("batch"), integer("classes"));
  }
};

// One run of 20 steps: logits, gradients and running statistics of the first; all losses; the state after the last, and
// what it answers in eval mode.
void expect_run(const std::string& file, torch::Dtype dtype, Tolerance first, Tolerance trajectory, Tolerance after) {
  Run run(file, dtype);
  const Json& golden = run.golden;
  torch::optim::SGD optimizer(
      run.model.parameters(),
      torch::optim::SGDOptions(golden.at("lr").get<double>()).momentum(golden.at("momentum").get<double>()));
  run.model.train();
  const Json& losses = golden.at("losses");
  ASSERT_EQ(losses.size(), 20u);
  for (size_t step = 0; step < losses.size(); ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = run.model.forward(run.input(static_cast<int64_t>(step)));
    const at::Tensor loss = torch::cross_entropy_loss(logits, run.labels(static_cast<int64_t>(step)));
    loss.backward();
    const double expected = losses[step].get<double>();
    expect_near(loss.item<double>(), expected, expected, step ? trajectory : first,
                "loss of step " + std::to_string(step));
    if (step == 0) {
      expect_values(logits, golden.at("logits"), first, "logits");
      expect_digests(gradients_of(run.model), golden.at("gradients"), first);
      expect_digests(run.model.named_buffers(), golden.at("buffers_after_1"), first);
    }
    optimizer.step();
  }
  expect_digests(run.model.named_parameters(), golden.at("parameters_after_all"), trajectory);
  expect_digests(run.model.named_buffers(), golden.at("buffers_after_all"), trajectory);
  run.model.eval();
  expect_values(run.model.forward(run.input(0)), golden.at("eval_logits"), after, "logits in eval mode");
}

}  // namespace

TEST(ResNetGolden, Float64StepAndTrajectory) {
  expect_run("resnet18_float64.json", torch::kFloat64, {.relative = 1e-9, .absolute = 1e-12},
             {.relative = 1e-9, .absolute = 1e-10}, {.relative = 1e-9, .absolute = 1e-10});
}

// Float32 rounds differently with other kernels (AVX-512, AVX2, plain): over the 20 steps that grows to 1e-6 in losses
// and weights, and to 2e-3 in eval mode's logits, which the small running variances amplify. The float64 run is the
// sharp comparison.
TEST(ResNetGolden, Float32StepAndTrajectory) {
  expect_run("resnet18_float32.json", torch::kFloat32, {.relative = 1e-3, .absolute = 2e-5},
             {.relative = 5e-3, .absolute = 1e-4}, {.relative = 2e-2, .absolute = 1e-2});
}

// The modules draw random numbers in torchvision's order, also where the constructors' draws are thrown away.
TEST(ResNetGolden, SeedGivesTorchvisionsWeights) {
  const Json golden = golden::read("initial_weights.json");
  torch::manual_seed(golden.at("seed").get<uint64_t>());
  const Model model = resnet18({.num_classes = golden.at("num_classes").get<int64_t>()});
  expect_digests(model.named_parameters(), golden.at("parameters"), {.relative = 1e-5, .absolute = 1e-7});
}

TEST(ResNetGolden, NamesShapesAndOrderAreTorchvisions) {
  const Json golden = golden::read("state_dicts.json").at("models");
  const std::vector<std::pair<std::string, Model>> models = {
      {"resnet18", resnet18()}, {"resnet34", resnet34()}, {"resnet50", resnet50()}};
  for (const auto& [name, model] : models) {
    // torchvision lists parameters and buffers mixed, Model one after the other, each in torchvision's order.
    std::vector<std::string> parameters, buffers, own_parameters, own_buffers;
    const auto entry = [](const std::string& key, const std::vector<int64_t>& sizes) {
      return c10::str(key, " ", sizes);
    };
    for (const Json& item : golden.at(name)) {
      const auto key = item[0].get<std::string>();
      const bool buffer = key.find("running_") != std::string::npos || key.ends_with("num_batches_tracked");
      (buffer ? buffers : parameters).push_back(entry(key, item[1].get<std::vector<int64_t>>()));
    }
    for (const auto& [key, tensor] : model.named_parameters())
      own_parameters.push_back(entry(key, tensor.sizes().vec()));
    for (const auto& [key, tensor] : model.named_buffers()) own_buffers.push_back(entry(key, tensor.sizes().vec()));
    EXPECT_EQ(own_parameters, parameters) << name;
    EXPECT_EQ(own_buffers, buffers) << name;
  }
}

}  // namespace bellows::models
