#include "bellows/optim/schedules/lr_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/optim/lion.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/schedules/schedule_compose.h"

namespace bellows::optim {

namespace {

using testing::DoubleNear;
using testing::ElementsAre;

at::Tensor weight() {
  return torch::zeros(1, at::requires_grad());
}

torch::optim::SGD plain_sgd(double lr) {
  return torch::optim::SGD(std::vector<at::Tensor>{weight()}, torch::optim::SGDOptions(lr));
}

double rate_of(const torch::optim::Optimizer& optimizer, size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}

}  // namespace

TEST(LrScheduler, SetsTheFirstRateAtOnce) {
  torch::optim::SGD sgd = plain_sgd(0.5);
  LrScheduler scheduler(sgd, warmup({.steps = 4, .start_factor = 0.2}));
  EXPECT_DOUBLE_EQ(rate_of(sgd), 0.1);
  EXPECT_EQ(scheduler.last_step(), 0);
  scheduler.step();
  EXPECT_DOUBLE_EQ(rate_of(sgd), 0.2);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(DoubleNear(0.2, 1e-15)));
  EXPECT_THAT(scheduler.base_lrs(), ElementsAre(0.5));
}

TEST(LrScheduler, GoesOnFromItsState) {
  torch::optim::SGD sgd = plain_sgd(0.5), other = plain_sgd(7);
  LrScheduler scheduler(sgd, exponential_lr(0.9)), resumed(other, exponential_lr(0.9));
  for (int i = 0; i < 5; ++i) scheduler.step();
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(rate_of(other), rate_of(sgd));
  scheduler.step();
  resumed.step();
  EXPECT_EQ(rate_of(other), rate_of(sgd));
  EXPECT_EQ(resumed.last_step(), 6);
}

TEST(LrScheduler, FillsALearningRateGivenAsTensor) {
  const at::Tensor lr = torch::tensor(0.5, at::kDouble);
  SGD sgd({weight()}, {.lr_tensor = lr});
  LrScheduler scheduler(sgd, exponential_lr(0.5));
  EXPECT_EQ(lr.item<double>(), 0.5);
  scheduler.step();
  EXPECT_EQ(lr.item<double>(), 0.25);
  EXPECT_TRUE(sgd.lr_tensor().is_same(lr));
  EXPECT_EQ(rate_of(sgd), 0.25);
  const std::vector<at::Tensor> one = {weight()}, two = {weight()};
  SGD pair(std::vector<torch::optim::OptimizerParamGroup>{one, two}, {.lr_tensor = lr});
  EXPECT_THROW(LrScheduler(pair, std::vector<GroupSchedule>{{step_lr(3)}, {constant_schedule(0.5)}}), c10::ValueError);
  EXPECT_EQ(lr.item<double>(), 0.25);
}

TEST(LrScheduler, CyclesTheFirstBetaOfLion) {
  LionGroupOptions options;
  set_momentum(options, 0.5);
  EXPECT_EQ(std::get<0>(options.betas()), 0.5);
  EXPECT_EQ(std::get<1>(options.betas()), 0.99);
  EXPECT_EQ(get_momentum(options), 0.5);
}

TEST(LrScheduler, TrainsLikeRatesSetByHand) {
  const at::Tensor a = torch::ones(3, at::requires_grad()), b = torch::ones(3, at::requires_grad());
  torch::optim::SGD scheduled(std::vector<at::Tensor>{a}, 0.5), by_hand(std::vector<at::Tensor>{b}, 0.5);
  LrScheduler scheduler(scheduled, step_lr(2, 0.5));
  for (int step = 0; step < 5; ++step) {
    by_hand.param_groups()[0].options().set_lr(0.5 * std::pow(0.5, step / 2));
    for (auto [p, optimizer] : {std::pair{a, &scheduled}, std::pair{b, &by_hand}}) {
      optimizer->zero_grad();
      p.square().sum().backward();
      optimizer->step();
    }
    scheduler.step();
  }
  EXPECT_TRUE(torch::equal(a, b));
}

TEST(LrScheduler, WrongUseIsRefused) {
  torch::optim::SGD sgd = plain_sgd(0.5);
  EXPECT_THROW(LrScheduler(sgd, Schedule()), c10::ValueError);
  EXPECT_THROW(LrScheduler(sgd, std::vector<GroupSchedule>{}), c10::ValueError);
  EXPECT_THROW(LrScheduler(sgd, [](int64_t) { return std::nan(""); }), c10::ValueError);
  EXPECT_THROW(LrScheduler(sgd, [](int64_t) { return -1.0; }), c10::ValueError);
  EXPECT_EQ(rate_of(sgd), 0.5);
  torch::optim::Adagrad adagrad(std::vector<at::Tensor>{weight()});
  EXPECT_THROW(LrScheduler(adagrad, one_cycle_lr({.total_steps = 5})), c10::ValueError);
  EXPECT_EQ(rate_of(adagrad), 0.01);
  torch::optim::SGD empty(std::vector<torch::optim::OptimizerParamGroup>{}, 0.1);
  EXPECT_THROW(LrScheduler(empty, step_lr(3)), c10::ValueError);
  torch::optim::SGD wrong_rate = plain_sgd(0.5);
  wrong_rate.param_groups()[0].options().set_lr(INFINITY);
  EXPECT_THROW(LrScheduler(wrong_rate, step_lr(3)), c10::ValueError);
}

TEST(LrScheduler, AFailedStepChangesNothing) {
  torch::optim::SGD sgd = plain_sgd(0.5);
  LrScheduler scheduler(sgd, one_cycle_lr({.total_steps = 2, .cycle_momentum = false}));
  scheduler.set_step(2);
  const double last = rate_of(sgd);
  EXPECT_THROW(scheduler.step(), c10::ValueError);
  EXPECT_THROW(scheduler.set_step(-1), c10::ValueError);
  EXPECT_EQ(scheduler.last_step(), 2);
  EXPECT_EQ(rate_of(sgd), last);
  sgd.add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{weight()}));
  EXPECT_THROW(scheduler.set_step(0), c10::ValueError);
}

TEST(LrScheduler, StateOfSomethingElseIsRefused) {
  torch::optim::SGD sgd = plain_sgd(0.5);
  LrScheduler scheduler(sgd, step_lr(3));
  NamedTensors two_groups = scheduler.state_dict();
  two_groups[1].second = torch::tensor({0.1, 0.2}, at::kDouble);
  EXPECT_THROW(scheduler.load_state_dict(two_groups), c10::ValueError);
  EXPECT_THROW(scheduler.load_state_dict({}), c10::ValueError);
  EXPECT_THROW(scheduler.load_state_dict(ReduceLrOnPlateau().state_dict()), c10::ValueError);
  EXPECT_THROW(ReduceLrOnPlateau().load_state_dict(scheduler.state_dict()), c10::ValueError);
  EXPECT_EQ(rate_of(sgd), 0.5);
}

TEST(Plateau, GoesOnFromItsState) {
  const PlateauOptions options{.factor = 0.5, .patience = 1, .cooldown = 2};
  ReduceLrOnPlateau whole(options), first(options), second(options);
  for (int i = 0; i < 7; ++i) {
    whole.step(1);
    first.step(1);
  }
  second.load_state_dict(first.state_dict());
  for (int i = 0; i < 9; ++i) EXPECT_EQ(second.step(1), whole.step(1));
  EXPECT_LT(second.factor(), 0.25);
}

TEST(Plateau, MultipliesASchedule) {
  torch::optim::SGD sgd = plain_sgd(1);
  ReduceLrOnPlateau plateau({.factor = 0.5, .patience = 0});
  LrScheduler scheduler(sgd, chained({exponential_lr(0.1), plateau.as_schedule()}));
  plateau.step(1);
  plateau.step(std::nan(""));  // no improvement
  scheduler.step();
  EXPECT_DOUBLE_EQ(rate_of(sgd), 0.05);
}

}  // namespace bellows::optim
