#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/amp/grad_scaler.h"
#include "tests/amp/golden.h"

namespace bellows::amp {

namespace {

/// The run of tools/goldens/amp.py: two optimizers, one with a sparse table, infinities and NaNs put in by hand.
class ScalerRun {
 public:
  ScalerRun() {
    for (const at::Tensor& t : tensors()) t.requires_grad_();
  }

  std::vector<at::Tensor> tensors() const { return {w, b, table, c}; }

  void backward(int64_t i) {
    first.zero_grad();
    second.zero_grad();
    const std::string k = std::to_string(i % 4);
    const at::Tensor x = golden::values("x" + k, {6, 8}), y = golden::values("y" + k, {6, 4});
    const at::Tensor rows = models::formula_labels("rows" + k, 6, 16);
    const std::vector<at::Tensor> losses = {
        (x.matmul(w) + b - y).pow(2).mean(),
        (torch::embedding(table, rows, -1, false, /*sparse=*/true) * c - y).pow(2).mean()};
    for (const at::Tensor& loss : scaler.scale(losses)) loss.backward();
    if (i % 11 == 5) w.grad()[0][0] = std::numeric_limits<float>::infinity();
    if (i % 17 == 8) table.grad()._values()[0][0] = std::numeric_limits<float>::quiet_NaN();
    if (i % 23 == 20) c.grad()[0] = -std::numeric_limits<float>::infinity();
  }

  void step(int64_t i) {
    if (i % 3 == 0) scaler.unscale_(first);
    scaler.step(first);
    scaler.step(second);
  }

  void update(int64_t i) {
    if (i == 60) {
      scaler.set_growth_factor(4);
      scaler.set_backoff_factor(0.25);
    }
    if (i == 150) scaler.set_growth_interval(3);
    i == 120 ? scaler.update(512.0) : scaler.update();
    if (i != 90) return;
    const NamedTensors state = scaler.state_dict();
    scaler = GradScaler();
    scaler.load_state_dict(state);
  }

  at::Tensor w = golden::values("w", {8, 4}), b = golden::values("b", {4}), table = golden::values("table", {16, 4}),
             c = golden::values("c", {4});
  torch::optim::SGD first{std::vector<at::Tensor>{w, b}, torch::optim::SGDOptions(0.05).momentum(0.9)};
  torch::optim::SGD second{std::vector<at::Tensor>{table, c}, torch::optim::SGDOptions(0.1)};
  GradScaler scaler{{.init_scale = 1024, .growth_interval = 7}};
};

}  // namespace

TEST(GradScalerGolden, TwoOptimizersWithInjectedInfinitiesGoPythonsWay) {
  const auto expected = golden::read("grad_scaler.json");
  ScalerRun run;
  int64_t i = 0, left_out = 0;
  for (const auto& step : expected["trajectory"]) {
    SCOPED_TRACE(i);
    run.backward(i);
    run.step(i);
    const bool stepped[] = {run.scaler.found_inf(run.first).item<float>() == 0,
                            run.scaler.found_inf(run.second).item<float>() == 0};
    run.update(i);
    ASSERT_EQ(run.scaler.get_scale(), step[0].get<double>());
    ASSERT_EQ(run.scaler.get_growth_tracker(), step[1].get<int64_t>());
    ASSERT_EQ(stepped[0], step[2].get<int>() == 1);
    ASSERT_EQ(stepped[1], step[3].get<int>() == 1);
    const auto tensors = run.tensors();
    for (size_t t = 0; t < 4; ++t) {
      ASSERT_NEAR(tensors[t].detach().to(at::kDouble).sum().item<double>(), step[4 + t].get<double>(), 2e-5);
    }
    left_out += !stepped[0] + !stepped[1];
    ++i;
  }
  EXPECT_EQ(i, 200);
  EXPECT_GT(left_out, 30);
  const char* names[] = {"w", "b", "table", "c"};
  for (size_t t = 0; t < 4; ++t) {
    const auto wanted = torch::tensor(expected["final"][names[t]].get<std::vector<float>>());
    EXPECT_TRUE(torch::allclose(run.tensors()[t].flatten(), wanted, 1e-5, 1e-6)) << names[t];
  }
}

TEST(GradScalerGolden, StateHasPythonsEntries) {
  const auto expected = golden::read("grad_scaler.json")["state"];
  const NamedTensors state = GradScaler().state_dict();
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [key, value] : state) EXPECT_TRUE(expected.contains(key)) << key;
}

}  // namespace bellows::amp
