#include "bellows/optim/schedules/schedule.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "bellows/optim/schedules/lr_scheduler.h"
#include "bellows/optim/schedules/schedule_compose.h"
#include "tests/optim/torch_golden.h"

namespace bellows::optim {

namespace {

constexpr double base_rate = 0.1;

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> optimizer_with(const std::vector<double>& rates, Options options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    auto own = std::make_unique<Options>(options);
    own->lr(rate);
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros(1, at::requires_grad())}, std::move(own));
  }
  return std::make_unique<Optimizer>(groups, options);
}

std::unique_ptr<torch::optim::Optimizer> sgd_with(const std::vector<double>& rates) {
  return optimizer_with<torch::optim::SGD>(rates, torch::optim::SGDOptions(1).momentum(0.9));
}

/// Compares `value(group)` of every group after every step with rows [groups, 100].
void expect_rows(LrScheduler& scheduler, const at::Tensor& golden, double tolerance,
                 const std::function<double(size_t)>& value) {
  ASSERT_EQ(golden.size(1), 100);
  const auto expected = golden.accessor<double, 2>();
  for (int64_t step = 0; step < golden.size(1); ++step) {
    if (step > 0) scheduler.step();
    for (int64_t group = 0; group < golden.size(0); ++group)
      ASSERT_NEAR(value(static_cast<size_t>(group)), expected[group][step], tolerance) << "step " << step;
  }
}

void expect_lr(torch::optim::Optimizer& optimizer, LrScheduler scheduler, const std::string& name) {
  SCOPED_TRACE(name);
  expect_rows(scheduler, open_golden("schedule.safetensors").tensor(name), 1e-12 * base_rate,
              [&](size_t i) { return optimizer.param_groups()[i].options().get_lr(); });
}

void expect_golden(const std::string& name, const Schedule& schedule) {
  const auto sgd = sgd_with({base_rate});
  expect_lr(*sgd, LrScheduler(*sgd, schedule), name);
}

void expect_cycle(torch::optim::Optimizer& optimizer, const std::string& name, const GroupSchedule& schedule) {
  expect_lr(optimizer, LrScheduler(optimizer, schedule), name);
  LrScheduler again(optimizer, GroupSchedule{constant_schedule(), schedule.momentum});
  expect_rows(again, open_golden("schedule.safetensors").tensor(name + ".momentum"), 1e-12,
              [&](size_t i) { return get_momentum(optimizer.param_groups()[i].options()); });
}

}  // namespace

TEST(Schedule, EqualsTorchs) {
  expect_golden("constant_lr", constant_lr(0.25, 17));
  expect_golden("step_lr", step_lr(7, 0.5));
  expect_golden("multi_step_lr", multi_step_lr({3, 10, 50}, 0.3));
  expect_golden("exponential_lr", exponential_lr(0.97));
  expect_golden("linear_lr", linear_lr(0.2, 0.9, 40));
  expect_golden("polynomial_lr", polynomial_lr(60, 2.5));
  expect_golden("cosine_annealing_lr", cosine_annealing_lr(30, 0.1));
  expect_golden("cosine_annealing_warm_restarts", cosine_annealing_warm_restarts(10, 1, 0.04));
  expect_golden("cosine_annealing_warm_restarts_2", cosine_annealing_warm_restarts(7, 2));
  expect_golden("lambda_lr", [](int64_t step) { return std::pow(0.95, step); });
}

TEST(Schedule, SwaEqualsTorchs) {
  expect_golden("swa_lr_cos", swa_lr({.anneal_steps = 15, .factor = 0.2}));
  expect_golden("swa_lr_linear", swa_lr({.anneal_steps = 15, .factor = 3, .anneal = Anneal::linear}));
  expect_golden("swa_lr_at_once", swa_lr({.anneal_steps = 0, .factor = 0.2}));
  expect_golden("swa_lr_behind", swa_lr({.start = 40, .anneal_steps = 10, .factor = 0.5}, cosine_annealing_lr(60)));
}

TEST(Schedule, CompositionsEqualTorchs) {
  expect_golden("chained", chained({constant_lr(0.1, 20), exponential_lr(0.9)}));
  expect_golden("sequential",
                sequential({constant_lr(0.1, 20), cosine_annealing_lr(40, 0.01), exponential_lr(0.9)}, {20, 60}));
  expect_golden("warmup_linear", warmup({.steps = 12, .start_factor = 0.01}, cosine_annealing_lr(88)));
  expect_golden("warmup_constant", warmup({.steps = 12, .start_factor = 0.3, .shape = Warmup::constant}, step_lr(30)));
  expect_golden("warmup_under", warmup({.steps = 25, .start_factor = 0.1, .under = true}, exponential_lr(0.98)));
  expect_golden("warmup_exponential",
                warmup({.steps = 20, .start_factor = 0.001, .shape = Warmup::exponential}, polynomial_lr(80)));
}

TEST(Schedule, EqualsTransformers) {
  const WarmupOptions ten{.steps = 10};
  expect_golden("hf_constant", warmup(ten));
  expect_golden("hf_linear", warmup(ten, linear_lr(1, 0, 80)));
  expect_golden("hf_cosine", warmup(ten, cosine_lr(90)));
  expect_golden("hf_cosine_waves", warmup(ten, cosine_lr(90, 1.5)));
  expect_golden("hf_cosine_restarts", warmup(ten, cosine_annealing_warm_restarts(30)));
  expect_golden("hf_cosine_min", warmup(ten, cosine_lr(90, 0.5, 0.1)));
  expect_golden("hf_polynomial", warmup(ten, polynomial_lr(70, 2, 0.01)));
  expect_golden("hf_inverse_sqrt", warmup(ten, inverse_sqrt_lr(10)));
  expect_golden("hf_inverse_sqrt_25", warmup(ten, inverse_sqrt_lr(25)));
}

TEST(Schedule, CyclesEqualTorchsInRateAndMomentum) {
  const std::vector<double> rate = {base_rate};
  const auto sgd = sgd_with(rate), adam = optimizer_with<torch::optim::Adam>(rate, torch::optim::AdamOptions()),
             adamw = optimizer_with<torch::optim::AdamW>(rate, torch::optim::AdamWOptions()),
             rmsprop = optimizer_with<torch::optim::RMSprop>(rate, torch::optim::RMSpropOptions().momentum(0.9));
  expect_cycle(*sgd, "one_cycle_cos", one_cycle_lr({.total_steps = 100}));
  expect_cycle(
      *sgd_with(rate), "one_cycle_linear",
      one_cycle_lr(
          {.total_steps = 100, .pct_start = 0.4, .anneal = Anneal::linear, .div_factor = 10, .final_div_factor = 100}));
  expect_cycle(*adamw, "one_cycle_three_phase",
               one_cycle_lr({.total_steps = 100, .base_momentum = 0.8, .max_momentum = 0.99, .three_phase = true}));
  expect_cycle(*optimizer_with<torch::optim::Adam>(rate, torch::optim::AdamOptions()), "one_cycle_at_once",
               one_cycle_lr({.total_steps = 100, .pct_start = 0}));
  const CyclicOptions ten{.base_factor = 0.2, .step_size_up = 10};
  expect_cycle(*sgd_with(rate), "cyclic_triangular", cyclic_lr(ten));
  CyclicOptions options = ten;
  options.mode = CyclicMode::triangular2;
  options.step_size_down = 6;
  expect_cycle(*rmsprop, "cyclic_triangular2", cyclic_lr(options));
  expect_cycle(*adam, "cyclic_exp_range",
               cyclic_lr({.base_factor = 0.2,
                          .step_size_up = 10,
                          .mode = CyclicMode::exp_range,
                          .gamma = 0.98,
                          .base_momentum = 0.7}));
}

TEST(Schedule, GroupsKeepTheirOwnBaseRates) {
  const std::vector<double> rates = {0.1, 0.03};
  const auto same = sgd_with(rates), own = sgd_with(rates), cycle = sgd_with(rates);
  expect_lr(*same, LrScheduler(*same, step_lr(9, 0.7)), "groups_same");
  expect_lr(*own,
            LrScheduler(*own, std::vector<GroupSchedule>{{cosine_annealing_lr(25, 0.01 / 0.1)},
                                                         {cosine_annealing_lr(25, 0.01 / 0.03)}}),
            "groups_own");
  expect_lr(*cycle, LrScheduler(*cycle, one_cycle_lr({.total_steps = 100, .cycle_momentum = false})),
            "groups_one_cycle");
}

TEST(Schedule, PlateausEqualTorchs) {
  const auto file = open_golden("schedule.safetensors");
  const at::Tensor metrics = file.tensor("plateau_metrics");
  const auto expect = [&](const std::string& name, const PlateauOptions& options, double sign) {
    SCOPED_TRACE(name);
    ReduceLrOnPlateau plateau(options);
    const at::Tensor golden = file.tensor(name);
    double rate = base_rate;
    for (int64_t step = 0; step < 100; ++step) {
      ASSERT_NEAR(rate, golden[0][step].item<double>(), 1e-12 * base_rate) << "step " << step;
      const auto metric = metrics[step].item<double>();
      rate = base_rate * plateau.step(sign > 0 ? metric : 1 - metric);
    }
    ASSERT_LT(rate, base_rate);
  };
  expect("plateau", {.factor = 0.5, .patience = 3, .eps = 1e-7}, 1);
  expect("plateau_max_abs",
         {.mode = PlateauMode::max,
          .factor = 0.3,
          .patience = 2,
          .threshold = 0.005,
          .threshold_mode = ThresholdMode::abs,
          .cooldown = 4,
          .min_factor = 0.01,
          .eps = 1e-7},
         -1);
}

TEST(Schedule, ConstantIsConstant) {
  const Schedule schedule = constant_schedule(0.5);
  EXPECT_EQ(schedule(0), 0.5);
  EXPECT_EQ(schedule(1000000), 0.5);
}

TEST(Schedule, WarmupRisesToTheRateBehindIt) {
  const Schedule schedule = linear_warmup(4);
  EXPECT_DOUBLE_EQ(schedule(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule(2), 0.75);
  EXPECT_EQ(schedule(3), 1);
  EXPECT_EQ(schedule(4), 1);
}

TEST(Schedule, WarmupScalesWhatComesBehindIt) {
  const Schedule schedule = linear_warmup(2, [](int64_t step) { return step == 0 ? 10.0 : 2.0; });
  EXPECT_DOUBLE_EQ(schedule(0), 5);
  EXPECT_DOUBLE_EQ(schedule(1), 2);
}

TEST(Schedule, WarmupOfNoStepsIsNone) {
  EXPECT_EQ(linear_warmup(0)(0), 1);
  EXPECT_EQ(warmup({.steps = 0}, exponential_lr(0.5))(1), 0.5);
}

TEST(Schedule, StaysExactFarOut) {
  const int64_t far = int64_t{1} << 40;
  EXPECT_NEAR(cosine_annealing_lr(4)(far), 1, 1e-12);
  EXPECT_NEAR(cosine_annealing_warm_restarts(3, 2)(3 * ((int64_t{1} << 40) - 1)), 1, 1e-12);
  EXPECT_NEAR(cyclic_lr({.base_factor = 0, .step_size_up = 4}).lr(far + 4), 1, 1e-12);
  EXPECT_EQ(cyclic_lr({.base_factor = 0.1, .step_size_up = 1, .mode = CyclicMode::triangular2}).lr(far + 1), 0.1);
  EXPECT_EQ(cosine_lr(10)(far), cosine_lr(10)(10));
}

TEST(Schedule, OneCycleEndsWhereItSays) {
  const GroupSchedule cycle = one_cycle_lr({.total_steps = 10, .pct_start = 0.1});
  EXPECT_EQ(cycle.lr(0), 1);  // a rise of no length is over at once
  EXPECT_EQ(cycle.lr(10), cycle.lr(9));
  EXPECT_NEAR(cycle.lr(9), 1 / 25e4, 1e-15);
  EXPECT_THROW(cycle.lr(11), c10::ValueError);
  EXPECT_THROW(cycle.momentum(11), c10::ValueError);
  EXPECT_NEAR(one_cycle_lr({.total_steps = 1}).lr(0), 1 / 25e4, 1e-15);
}

TEST(Schedule, WrongNumbersAreRefused) {
  const double nan = std::nan("");
  EXPECT_THROW(linear_warmup(-1), c10::ValueError);
  EXPECT_THROW(constant_schedule(-1), c10::ValueError);
  EXPECT_THROW(constant_lr(nan, 3), c10::ValueError);
  EXPECT_THROW(constant_lr(0.5, -1), c10::ValueError);
  EXPECT_THROW(step_lr(0), c10::ValueError);
  EXPECT_THROW(step_lr(3, -0.1), c10::ValueError);
  EXPECT_THROW(multi_step_lr({5, 3}), c10::ValueError);
  EXPECT_THROW(multi_step_lr({3, 3}), c10::ValueError);
  EXPECT_THROW(multi_step_lr({0, 3}), c10::ValueError);
  EXPECT_THROW(exponential_lr(INFINITY), c10::ValueError);
  EXPECT_THROW(linear_lr(1, 0, 0), c10::ValueError);
  EXPECT_THROW(polynomial_lr(5, nan), c10::ValueError);
  EXPECT_THROW(inverse_sqrt_lr(0), c10::ValueError);
  EXPECT_THROW(cosine_annealing_lr(0), c10::ValueError);
  EXPECT_THROW(cosine_lr(10, -1), c10::ValueError);
  EXPECT_THROW(cosine_annealing_warm_restarts(0), c10::ValueError);
  EXPECT_THROW(cosine_annealing_warm_restarts(4, 0), c10::ValueError);
  EXPECT_THROW(swa_lr({.anneal_steps = -1}), c10::ValueError);
  EXPECT_THROW(swa_lr({}, nullptr), c10::ValueError);
}

TEST(Schedule, WrongCyclesAndCompositionsAreRefused) {
  EXPECT_THROW(one_cycle_lr({}), c10::ValueError);
  EXPECT_THROW(one_cycle_lr({.total_steps = 5, .pct_start = 1.5}), c10::ValueError);
  EXPECT_THROW(one_cycle_lr({.total_steps = 5, .div_factor = 0}), c10::ValueError);
  EXPECT_THROW(one_cycle_lr({.total_steps = 5, .max_momentum = -1}), c10::ValueError);
  EXPECT_THROW(cyclic_lr({.step_size_up = 0}), c10::ValueError);
  EXPECT_THROW(cyclic_lr({.base_factor = 2}), c10::ValueError);
  EXPECT_THROW(warmup({.steps = -1}), c10::ValueError);
  EXPECT_THROW(warmup({.steps = 5, .shape = Warmup::exponential}), c10::ValueError);
  EXPECT_THROW(warmup({.steps = 5, .start_factor = 2}), c10::ValueError);
  EXPECT_THROW(warmup({.steps = 5}, nullptr), c10::ValueError);
  EXPECT_THROW(chained({}), c10::ValueError);
  EXPECT_THROW(chained({constant_schedule(), nullptr}), c10::ValueError);
  EXPECT_THROW(sequential({constant_schedule()}, {3}), c10::ValueError);
  EXPECT_THROW(sequential({constant_schedule(), step_lr(3), step_lr(4)}, {5, 5}), c10::ValueError);
  EXPECT_THROW(ReduceLrOnPlateau({.factor = 1}), c10::ValueError);
  EXPECT_THROW(ReduceLrOnPlateau({.patience = -1}), c10::ValueError);
  EXPECT_THROW(ReduceLrOnPlateau({.threshold = std::nan("")}), c10::ValueError);
}

}  // namespace bellows::optim
