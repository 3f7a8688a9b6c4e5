#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/comm/mesh.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/state/state.h"
#include "bellows/optim/step_in_backward.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/zero/blocks.h"
#include "tests/support/errors.h"

// Sharded optimizers that update parameters during backward.
namespace bellows::parallel::testing::zero {
namespace {

using ::testing::HasSubstr;

/// Ranks, ranks per copy of the model, and options. With one rank per copy, this is data parallelism.
struct BackwardCase {
  int ranks, shards;
  ShardOptions options;
};

/// A rank's net, whose parameter `unused` gets a gradient on the last rank in odd steps.
struct SteppedNet {
  NetModel m;
  comm::Group world;
  std::optional<comm::Mesh> mesh;
  std::shared_ptr<ShardedOptimizer> optimizer;

  SteppedNet(const comm::Group& all, const BackwardCase& way, const MakeOptimizer& make) : world(all) {
    ShardOptions options = way.options;
    options.bucket_bytes = small_bucket;
    if (way.shards < way.ranks) {
      mesh.emplace(all, std::vector<comm::MeshAxis>{{"data", way.ranks / way.shards}, {"shard", way.shards}});
      options.replicas = mesh->group("data");
    }
    optimizer = zero_optimizer(make(m.net->distinct()), m.model, mesh ? mesh->group("shard") : all, options);
  }
  void train(int64_t steps, bool in_backward) {
    const auto stepping = in_backward ? optim::step_in_backward(*optimizer) : nullptr;
    const at::Tensor unused = m.net->named_parameters()[5].second;
    for (int64_t step = 0; step < steps; ++step) {
      optim::set_lr(*optimizer, 0.02 / static_cast<double>(step + 1));
      if (!in_backward) optimizer->zero_grad();
      at::Tensor loss = m.net->loss(step, world.rank(), world.size());
      if (step % 2 == 1 && world.rank() + 1 == world.size()) loss = loss + unused.square().sum();
      loss.backward();
      optimizer->step();  // with in_backward, it changes nothing
    }
  }
};

TEST(ZeroInBackward, TrainsWithTheSameBits) {
  const std::vector<BackwardCase> cases = {{1, 1, {.stage = 2}},
                                           {2, 2, {.stage = 2}},
                                           {3, 3, {.stage = 3}},
                                           {3, 1, {.stage = 2}},
                                           {4, 2, {.stage = 3}},
                                           {4, 2, {.stage = 2, .shard_state_over_replicas = true}},
                                           {4, 2, {.stage = 3, .shard_state_over_replicas = true}}};
  for (const BackwardCase& way : cases) {
    SCOPED_TRACE(c10::str(way.ranks, " ranks, ", way.shards, " shards, stage ", way.options.stage));
    run_ranks(way.ranks, [&](const comm::Group& world) {
      for (const MakeOptimizer& make : {adamw(), sgd()}) {
        SteppedNet after(world, way, make), within(world, way, make);
        after.train(4, false);
        within.train(4, true);
        expect_equal(within.m.net->values(), after.m.net->values());
        expect_equal(optim::state_dict(*within.optimizer), optim::state_dict(*after.optimizer));
      }
    });
  }
}

TEST(ZeroInBackward, StepsAfterBackwardContinue) {
  run_ranks(2, [](const comm::Group& world) {
    const BackwardCase way{2, 2, {.stage = 3}};
    SteppedNet after(world, way, adamw()), within(world, way, adamw());
    for (const bool in_backward : {true, false, true}) {
      after.train(2, false);
      within.train(2, in_backward);
    }
    expect_equal(within.m.net->values(), after.m.net->values());
  });
}

// The recomputed operators read parameters during backward.
TEST(ZeroInBackward, WorksWithCheckpointedBlocks) {
  run_ranks(2, [](const comm::Group& group) {
    ShardedBlocks after(group), within(group);
    const auto train = [&](ShardedBlocks& sharded) {
      for (int64_t step = 0; step < 3; ++step) {
        at::Tensor x = sharded.net->first(rows(step, group.rank(), 2));
        for (const auto& block : *sharded.net->blocks) {
          x = recompute::checkpoint(
              [&](const at::Tensor& in) { return block->as<torch::nn::Sequential>()->forward(in); }, x);
        }
        sharded.net->last(x).square().mean().backward();
        sharded.optimizer->step();
      }
    };
    train(after);
    const auto stepping = optim::step_in_backward(*within.optimizer);
    train(within);
    expect_equal(values_of(*within.net), values_of(*after.net));
  });
}

TEST(ZeroInBackward, GradientsAreFreedDuringBackward) {
  run_ranks(2, [](const comm::Group& group) {
    ShardedBlocks sharded(group, {.bucket_bytes = 1});
    const auto stepping = optim::step_in_backward(*sharded.optimizer);
    const auto& shards = sharded.optimizer->param_groups().front().params();
    const auto with_gradient = [&] {
      return std::count_if(shards.begin(), shards.end(),
                           [](const at::Tensor& shard) { return shard.grad().defined(); });
    };
    int64_t calls = 0;
    for (int64_t step = 0; step < 2; ++step) {
      at::Tensor x = sharded.net->first(rows(step, group.rank(), 2));
      for (const auto& block : *sharded.net->blocks) {
        x = block->as<torch::nn::Sequential>()->forward(x);
        x.register_hook([&](const at::Tensor&) {
          ++calls;
          EXPECT_EQ(with_gradient(), 0);
        });
      }
      sharded.net->last(x).square().mean().backward();
      EXPECT_EQ(with_gradient(), 0);
    }
    EXPECT_EQ(calls, 12);
  });
}

TEST(ZeroInBackward, MisuseIsExplained) {
  run_ranks(2, [](const comm::Group& group) {
    const Sharded first(group, 1, sgd());
    EXPECT_THAT(message_of([&] { optim::step_in_backward(*first.optimizer); }),
                HasSubstr("ZeRO-1 needs the gradients"));
    Sharded sharded(group, 2, sgd());
    EXPECT_THAT(message_of([&] { optim::step_in_backward(*sharded.optimizer, {.offload_state = true}); }),
                HasSubstr("Set offload_state of parallel::zero_optimizer() instead"));
    sharded.backward(0);
    EXPECT_THAT(message_of([&] { optim::step_in_backward(*sharded.optimizer); }), HasSubstr("already has a gradient"));
    sharded.optimizer->step();
    const auto stepping = optim::step_in_backward(*sharded.optimizer);
    EXPECT_THAT(message_of([&] { optim::step_in_backward(*sharded.optimizer); }), HasSubstr("already on"));
    EXPECT_THAT(message_of([&] { const auto local = sharded.optimizer->no_sync(); }),
                HasSubstr("each backward() is a step of its own"));
    sharded.backward(1);
    EXPECT_THAT(message_of([&] { optim::clip_grad_norm_(sharded.m.net->distinct(), 1.0); }),
                HasSubstr("each was applied and freed"));
    amp::GradScaler scaler;
    scaler.scale(sharded.m.net->loss(2, group.rank(), 2)).backward();
    EXPECT_THAT(message_of([&] { scaler.unscale_(*sharded.optimizer); }), HasSubstr("each was applied and freed"));
  });
}

TEST(ZeroInBackward, OldWeightsCannotBeReadAfterTheUpdate) {
  for (const int stage : {2, 3}) {
    NetModel m;
    const auto sharded = zero_optimizer(sgd()(m.net->distinct()), m.model, alone(), {.stage = stage});
    const auto stepping = optim::step_in_backward(*sharded);
    const at::Tensor weight = m.net->distinct()[2], x = at::ones({7, 6}, at::kDouble).requires_grad_();
    const at::Tensor early = x * weight.detach();  // backward needs the weight, but does not wait for its gradient
    const at::Tensor loss = m.net->loss(0, 0, 1);
    loss.backward();
    EXPECT_THAT(message_of([&] { early.sum().backward(); }), HasSubstr("modified by an inplace operation"));
  }
}

TEST(ZeroInBackward, ABackwardThatFailedEndsTheRank) {
  NetModel m;
  const auto sharded = zero_optimizer(sgd()(m.net->distinct()), m.model, alone(), {.bucket_bytes = 1});
  const auto stepping = optim::step_in_backward(*sharded);
  const at::Tensor early = m.net->distinct()[0] * 2, late = m.net->distinct()[7] * 2;
  early.register_hook([](const at::Tensor&) -> at::Tensor { TORCH_CHECK(false, "broken"); });
  EXPECT_ANY_THROW((early.sum() + late).sum().backward());
  EXPECT_THAT(message_of([&] { m.net->loss(0, 0, 1).backward(); }), HasSubstr("a backward pass failed"));
}

/// Its step fails for some parameters.
struct FailingSgd final : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK(!fails, "broken step");
    return torch::optim::SGD::step(std::move(closure));
  }
  bool fails = false;
};

TEST(ZeroInBackward, AStepThatFailedEndsTheRank) {
  NetModel m;
  const auto inner = std::make_shared<FailingSgd>(m.net->distinct(), torch::optim::SGDOptions(0.1));
  const auto sharded = zero_optimizer(inner, m.model, alone());
  const auto stepping = optim::step_in_backward(*sharded);
  m.net->loss(0, 0, 1).backward();
  inner->fails = true;
  EXPECT_THAT(message_of([&] { m.net->loss(1, 0, 1).backward(); }), HasSubstr("broken step"));
  inner->fails = false;
  EXPECT_THAT(message_of([&] { m.net->loss(2, 0, 1).backward(); }), HasSubstr("a backward pass failed"));
}

TEST(ZeroInBackward, UnfrozenParametersAreNamed) {
  NetModel m;
  const auto sharded = zero_optimizer(sgd()(m.net->distinct()), m.model, alone());
  const auto stepping = optim::step_in_backward(*sharded);
  m.net->named_parameters()[8].second.requires_grad_(true);
  EXPECT_THAT(message_of([&] { m.net->loss(0, 0, 1).backward(); }), HasSubstr("was frozen when the optimizer was"));
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
