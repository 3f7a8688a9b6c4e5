#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "bellows/amp/grad_scaler.h"
#include "bellows/core/model.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/zero/support.h"

// What a sharded optimizer gives is what one process gives on the same global batch.
namespace bellows::parallel::testing::zero {
namespace {

using optim::Impl;

/// Runs `body` on the ranks, and expects every one to end with `expected`.
void expect_on_ranks(int ranks, int stage, const std::vector<at::Tensor>& expected,
                     const std::function<std::vector<at::Tensor>(const comm::Group&)>& body) {
  SCOPED_TRACE("stage " + std::to_string(stage) + " on " + std::to_string(ranks));
  std::vector<std::vector<at::Tensor>> values(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& group) { values[static_cast<size_t>(group.rank())] = body(group); });
  expect_close(values[0], expected, 1e-9);
  for (const auto& other : values) expect_equal(other, values[0]);
}

/// One process that adds the gradients of the two halves of each batch, and halves them.
void train_on_halves(Net& net, torch::optim::Optimizer& optimizer, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    net.loss(step, 0, 2).backward();
    net.loss(step, 1, 2).backward();
    for (const at::Tensor& parameter : net.distinct()) {
      if (parameter.grad().defined()) parameter.mutable_grad().div_(2);
    }
    optimizer.step();
  }
}

TEST(Zero, TwentyStepsAreThoseOfOneProcess) {
  const std::vector<MakeOptimizer (*)(Impl)> rules = {sgd, adamw, rmsprop};
  const std::vector<Impl> impls = {Impl::loop, Impl::foreach, Impl::fused};
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::vector<at::Tensor> expected = train_alone(rules[i](Impl::loop), 20);
    for (const size_t ranks : {1, 2, 3, 4}) {  // every rule in every way and in all stages, on some number of ranks
      const int stage = static_cast<int>(1 + (i + ranks) % 3);
      const MakeOptimizer make = rules[i](impls[(i + ranks) % impls.size()]);
      expect_on_ranks(static_cast<int>(ranks), stage, expected, [&](const comm::Group& group) {
        Sharded sharded(group, stage, make);
        sharded.train(0, 20);
        return sharded.m.net->values();
      });
    }
  }
}

TEST(Zero, TwoRanksRoundAsOneProcessThatAddsTheHalves) {
  const OneThread one_thread;
  for (const MakeOptimizer& make : {adamw(Impl::fused), sgd(Impl::fused), adamw(Impl::foreach), sgd(Impl::loop)}) {
    Net alone(at::kFloat);
    const OptimizerPtr optimizer = make(alone.distinct());
    train_on_halves(alone, *optimizer, 8);
    for (const int stage : {1, 2, 3}) {
      run_ranks(2, [&](const comm::Group& group) {
        Sharded sharded(group, stage, make, at::kFloat);
        sharded.train(0, 8);
        expect_equal(sharded.m.net->values(), alone.values());
      });
    }
  }
}

TEST(Zero, StageOneTakesTheGradientsOfDistributedDataParallel) {
  const std::vector<at::Tensor> expected = train_alone(adamw(), 6);
  run_ranks(2, [&](const comm::Group& group) {
    const Sharded sharded(group, 1, adamw());
    const DistributedDataParallel ddp(sharded.m.model, group, {.find_unused_parameters = true});
    for (int64_t step = 0; step < 6; ++step) {
      optim::zero_grad(sharded.m.net->distinct());
      ddp.before_forward();
      const at::Tensor loss = sharded.m.net->loss(step, group.rank(), group.size());
      ddp.before_backward({loss});
      loss.backward();
      sharded.optimizer->step();
    }
    expect_close(sharded.m.net->values(), expected, 1e-9);
  });
}

// Two batches a step, the norm of their mean clipped, in each of the ways to call it.
enum class Clip { parameters, groups, with_step };

std::vector<at::Tensor> clipped_steps(Net& net, torch::optim::Optimizer& optimizer, Clip clip, double norm_type,
                                      const std::function<void(int64_t)>& backward, std::vector<double>& norms) {
  for (int64_t step = 0; step < 6; step += 2) {
    optimizer.zero_grad();
    backward(step);
    backward(step + 1);
    std::vector<at::Tensor> clipped = net.distinct();
    if (clip == Clip::groups) clipped = optimizer.param_groups().front().params();
    at::Tensor norm;
    if (clip == Clip::with_step) {
      norm = optim::clip_and_step(optimizer, 0.005, {.clip = {.norm_type = norm_type}, .skip_nonfinite = true});
    } else {
      norm = optim::clip_grad_norm_(clipped, 0.005, {.norm_type = norm_type});
      optimizer.step();
    }
    norms.push_back(norm.item<double>());
  }
  return net.values();
}

TEST(Zero, AccumulatesAndClipsAsOneProcess) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<Clip, std::vector<double>>> cases = {
      {Clip::parameters, {2, 1, infinity}}, {Clip::groups, {1}}, {Clip::with_step, {2, infinity}}};
  for (const auto& norm_types : cases) {
    const Clip clip = norm_types.first;
    for (const double norm_type : norm_types.second) {
      // Only fp32 is clipped while it is stepped.
      const at::ScalarType dtype = clip == Clip::with_step ? at::kFloat : at::kDouble;
      const double rtol = clip == Clip::with_step ? 1e-5 : 1e-9;
      Net alone(dtype);
      std::vector<double> norms;
      const auto expected = clipped_steps(
          alone, *sgd()(alone.distinct()), clip, norm_type,
          [&](int64_t step) { alone.loss(step, 0, 1).div(2).backward(); }, norms);
      EXPECT_GT(norms.front(), 0.005);
      run_ranks(3, [&](const comm::Group& group) {
        Sharded sharded(group, 2, sgd(), dtype);
        std::vector<double> same;
        const auto values = clipped_steps(
            *sharded.m.net, *sharded.optimizer, clip, norm_type, [&](int64_t step) { sharded.backward(step, 0.5); },
            same);
        expect_close(values, expected, rtol, rtol / 10);
        for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(same[i], norms[i], rtol * norms[i]);
      });
    }
  }
}

TEST(Zero, ClipsValuesAndZeroesThroughTheParameters) {
  run_ranks(2, [](const comm::Group& group) {
    Sharded sharded(group, 2, sgd());
    sharded.backward(0);
    optim::clip_grad_value_(sharded.m.net->distinct(), 1e-3);
    double largest = 0;
    for (const at::Tensor& part : sharded.optimizer->param_groups().front().params()) {
      if (part.grad().defined()) largest = std::max(largest, part.grad().abs().max().item<double>());
    }
    EXPECT_EQ(largest, 1e-3);
    optim::zero_grad(sharded.m.net->distinct());
    for (const at::Tensor& part : sharded.optimizer->param_groups().front().params()) {
      EXPECT_FALSE(part.grad().defined());
    }
  });
}

TEST(Zero, AllRanksLeaveAStepOutTogether) {
  for (const Impl impl : {Impl::fused, Impl::loop}) {
    for (const int stage : {1, 2, 3}) {
      // On four ranks some own nothing of the poisoned gradient.
      run_ranks(4, [&](const comm::Group& group) {
        Sharded sharded(group, stage, adamw(impl), at::kFloat);
        amp::GradScaler scaler({.init_scale = 1024});
        for (int64_t step = 0; step < 4; ++step) {
          const std::vector<at::Tensor> before = sharded.m.net->values();
          sharded.optimizer->zero_grad();
          const at::Tensor loss = sharded.m.net->loss(step, group.rank(), group.size());
          const double poison = step == 1 && group.rank() == 2 ? std::numeric_limits<double>::infinity() : 0;
          scaler.scale(loss + sharded.m.net->named_parameters()[7].second.sum() * poison).backward();
          if (stage == 1) average_gradients(*sharded.m.net, group);
          if (step == 2) scaler.unscale_(*sharded.optimizer);
          scaler.step(*sharded.optimizer);
          scaler.update();
          EXPECT_EQ(at::equal(before[0], sharded.m.net->values()[0]), step == 1) << step;
        }
        EXPECT_EQ(scaler.get_scale(), 512);
        EXPECT_EQ(scaler.get_growth_tracker(), 2);
        for (const at::Tensor& value : sharded.m.net->values()) EXPECT_TRUE(at::isfinite(value).all().item<bool>());
      });
    }
  }
}

/// Two groups, of which one is not decayed, and a rate that falls from step to step.
OptimizerPtr with_groups(const std::vector<at::Tensor>& p) {
  const std::vector<optim::PatternGroup> groups = {
      {.names = {}, .params = {p[4], p[0], p[2]}, .options = {}},
      {.names = {}, .params = {p[1], p[3], p[5], p[6], p[7], p[8]}, .options = {.pattern = "", .weight_decay = 0.0}}};
  return std::make_shared<optim::AdamW>(groups, optim::AdamWOptions{.lr = 0.02, .weight_decay = 0.3});
}

TEST(Zero, HeedsGroupsSchedulesAndAverages) {
  const auto train = [](NetModel& m, torch::optim::Optimizer& optimizer, const std::function<void(int64_t)>& backward) {
    optim::AveragedModel average(m.model, {.weight = optim::ema_weight(0.7)});
    for (int64_t step = 0; step < 8; ++step) {
      optim::set_lr(optimizer, 0.02 / static_cast<double>(step + 1));
      optimizer.zero_grad();
      backward(step);
      optimizer.step();
      average.update_parameters();
    }
    std::vector<at::Tensor> result = m.net->values();
    for (const auto& [name, tensor] : average.averaged()) result.push_back(tensor.clone());
    return result;
  };
  NetModel alone;
  const auto expected =
      train(alone, *with_groups(alone.net->distinct()), [&](int64_t step) { alone.net->loss(step, 0, 1).backward(); });
  for (const int stage : {1, 2, 3}) {
    expect_on_ranks(3, stage, expected, [&](const comm::Group& group) {
      Sharded sharded(group, stage, with_groups);
      return train(sharded.m, *sharded.optimizer, [&](int64_t step) { sharded.backward(step); });
    });
  }
}

TEST(Zero, KeepsMastersOfLowPrecisionWeights) {
  const auto make = [](std::vector<at::Tensor> parameters) {
    return std::make_shared<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions{.lr = 1e-4, .master_weights = true});
  };
  const OneThread one_thread;
  Net alone(at::kBFloat16);
  const OptimizerPtr optimizer = make(alone.distinct());
  train_on_halves(alone, *optimizer, 10);
  const NamedTensors state = optim::state_dict(*optimizer);
  for (const int stage : {1, 2, 3}) {
    run_ranks(2, [&](const comm::Group& group) {
      Sharded sharded(group, stage, make, at::kBFloat16);
      sharded.train(0, 10);
      expect_equal(sharded.m.net->values(), alone.values());
      expect_equal(optim::state_dict(*sharded.optimizer), state);
    });
  }
}

TEST(Zero, AParameterThatSomeRanksUseCountsAsZeroOnTheOthers) {
  run_ranks(2, [](const comm::Group& group) {
    Sharded sharded(group, 2, sgd());
    const at::Tensor unused = sharded.m.net->named_parameters()[5].second;
    const at::Tensor before = unused.detach().clone();
    at::Tensor loss = sharded.m.net->loss(0, group.rank(), 2);
    if (group.rank() == 1) loss = loss + unused.sum() * 4;
    loss.backward();
    sharded.optimizer->step();
    const at::Tensor expected = before - 0.05 * (2 + 0.01 * before);
    EXPECT_TRUE(at::allclose(unused.detach(), expected, 1e-12));
  });
}

/// Its backward calls a collective of its own, between the gradients of two buckets.
struct Synchronized final : torch::nn::Module {
  Synchronized() {
    for (const char* name : {"first", "branch", "last"}) register_parameter(name, at::full({4, 4}, 0.5, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto weights = parameters();
    at::Tensor h = at::linear(x, weights[0]);
    h.register_hook([this](const at::Tensor& gradient) { return comm::all_reduce(gradient.clone(), *group); });
    const at::Tensor y = at::linear(h, weights[2]);
    return group->rank() == 0 ? y + at::linear(h, weights[1]) : y;
  }
  const comm::Group* group = nullptr;
};

// Rank 0 sends the first bucket before that collective, rank 1 behind it.
TEST(Zero, BackwardMayCallCollectives) {
  run_ranks(2, [](const comm::Group& group) {
    const auto module = std::make_shared<Synchronized>();
    module->group = &group;
    const Model model = Model::of(module);
    const auto optimizer = zero_optimizer(std::make_shared<torch::optim::SGD>(module->parameters(), 0.1), model, group,
                                          {.stage = 2, .bucket_bytes = 256});
    model.forward(at::ones({1, 4}, at::kDouble)).sum().backward();
    optimizer->step();
    // dy/dh: 2 a weight matrix, so 4 on rank 0 and 2 on rank 1, 6 together on both; h = 2.
    const auto values = module->parameters();
    EXPECT_TRUE(at::allclose(values[0].detach(), at::full({4, 4}, 0.5 - 0.1 * 6, at::kDouble), 1e-12));
    EXPECT_TRUE(at::allclose(values[1].detach(), at::full({4, 4}, 0.5 - 0.1 * 2 / 2, at::kDouble), 1e-12));
    EXPECT_TRUE(at::allclose(values[2].detach(), at::full({4, 4}, 0.5 - 0.1 * 2, at::kDouble), 1e-12));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
