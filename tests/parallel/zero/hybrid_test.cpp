#include <gmock/gmock.h>
#include <torch/torch.h>

#include <tuple>

#include "bellows/comm/mesh.h"
#include "bellows/optim/state/state.h"
#include "tests/parallel/zero/blocks.h"
#include "tests/support/errors.h"

// Hybrid sharding: copies of the model, each of which is sharded over several ranks. Also frozen parameters.
namespace bellows::parallel::testing::zero {
namespace {

using ::testing::HasSubstr;

/// Number of copies, ranks per copy, stage, and whether the copies divide the state.
using Case = std::tuple<int, int, int, bool>;

struct Hybrid {
  NetModel m;
  comm::Group world;
  comm::Mesh mesh;
  std::shared_ptr<ShardedOptimizer> optimizer;

  Hybrid(const comm::Group& all, const Case& way, const MakeOptimizer& make, double seed = 0)
      : m(at::kDouble, seed), world(all), mesh(all, {{"data", std::get<0>(way)}, {"shard", std::get<1>(way)}}) {
    optimizer = zero_optimizer(make(m.net->distinct()), m.model, mesh.group("shard"),
                               {.stage = std::get<2>(way),
                                .bucket_bytes = small_bucket,
                                .replicas = mesh.group("data"),
                                .shard_state_over_replicas = std::get<3>(way)});
  }
  void train(int64_t first, int64_t last, int64_t rows = 24) {
    for (int64_t step = first; step < last; ++step) {
      optimizer->zero_grad();
      m.net->loss(step, world.rank(), world.size(), rows).backward();
      if (optimizer->stage() == 1) average_gradients(*m.net, world);
      optimizer->step();
    }
  }
};

class ZeroHybrid : public ::testing::TestWithParam<Case> {
 protected:
  int ranks() const { return std::get<0>(GetParam()) * std::get<1>(GetParam()); }
};

TEST_P(ZeroHybrid, EqualsOneProcess) {
  for (const MakeOptimizer& make : {adamw(), sgd()}) {
    const std::vector<at::Tensor> expected = train_alone(make, 20, 24);
    run_ranks(ranks(), [&](const comm::Group& world) {
      Hybrid hybrid(world, GetParam(), make);
      hybrid.train(0, 20);
      expect_close(hybrid.m.net->values(), expected, 1e-9);
    });
  }
}

TEST_P(ZeroHybrid, StateIsCompleteAndLoadsIntoOtherMeshes) {
  NamedTensors saved;
  run_ranks(ranks(), [&](const comm::Group& world) {
    Hybrid hybrid(world, GetParam(), adamw());
    hybrid.train(0, 3);
    const NamedTensors state = optim::state_dict(*hybrid.optimizer);
    if (world.rank() == 0) saved = state;
  });
  run_ranks(4, [&](const comm::Group& world) {
    for (const Case& other : {Case{2, 2, 3, true}, Case{4, 1, 2, true}, Case{1, 4, 3, false}}) {
      Hybrid hybrid(world, other, adamw());
      optim::load_state_dict(*hybrid.optimizer, saved);
      expect_equal(optim::state_dict(*hybrid.optimizer), saved);
    }
  });
  Net alone;
  const OptimizerPtr optimizer = adamw()(alone.distinct());
  optim::load_state_dict(*optimizer, saved);
  expect_equal(optim::state_dict(*optimizer), saved);
}

// All copies start from the weights of rank 0.
TEST_P(ZeroHybrid, CopiesStayTheSame) {
  run_ranks(ranks(), [&](const comm::Group& world) {
    Hybrid hybrid(world, GetParam(), sgd(), /*seed=*/world.rank());
    hybrid.train(0, 2);
    for (const at::Tensor& value : hybrid.m.net->values()) {
      const at::Tensor all = comm::all_gather(value.reshape({-1}), world);
      for (int rank = 1; rank < world.size(); ++rank) EXPECT_TRUE(at::equal(all[0], all[rank]));
    }
  });
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& test) {
  const auto& [data, shard, stage, divides] = test.param;
  return c10::str("Data", data, "Shard", shard, "Stage", stage, divides ? "Divided" : "");
}

INSTANTIATE_TEST_SUITE_P(Meshes, ZeroHybrid,
                         ::testing::Values(Case{2, 2, 1, false}, Case{2, 2, 2, false}, Case{2, 2, 2, true},
                                           Case{2, 2, 3, false}, Case{2, 2, 3, true}, Case{3, 2, 3, true},
                                           Case{2, 3, 3, false}, Case{4, 1, 3, true}, Case{1, 3, 3, true},
                                           Case{2, 4, 3, true}),
                         name_of_case);

int64_t state_elements(const ShardedOptimizer& optimizer) {
  int64_t count = 0;
  for (const comm::Shard& shard : optimizer.state_shards()) count += shard.local.numel();
  return count;
}

TEST(ZeroHybridMemory, CopiesDivideTheState) {
  run_ranks(4, [](const comm::Group& world) {
    const auto elements = [&](bool divides) {
      Hybrid hybrid(world, {2, 2, 3, divides}, adamw());
      hybrid.train(0, 1);
      return comm::all_reduce(torch::tensor({state_elements(*hybrid.optimizer)}), world).item<int64_t>();
    };
    const int64_t repeated = elements(false), divided = elements(true);
    int64_t moments = 0;
    for (const at::Tensor& parameter : Net().distinct())
      moments += parameter.requires_grad() ? 2 * parameter.numel() : 0;
    EXPECT_GE(repeated, 2 * (moments - 10));  // `unused` has no state; the numbers of steps are counted, too
    EXPECT_GE(divided, moments - 10);
    EXPECT_LE(divided, moments + 40);
  });
}

TEST(ZeroHybridBytes, EqualTheFormulas) {
  run_ranks(4, [](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"data", 2}, {"shard", 2}});
    const auto net = std::make_shared<Blocks>(4);
    const auto optimizer = zero_optimizer(sgd()(net->parameters()), Model::of(net), mesh.group("shard"),
                                          {.stage = 2, .bucket_bytes = 1, .replicas = mesh.group("data")});
    const auto before = comm::traffic(mesh.group("data"));
    loss_of(*net, 0, world).backward();
    auto after = comm::traffic(mesh.group("data"));
    int64_t slices = 0;
    for (const at::Tensor& parameter : net->parameters()) {
      const int64_t slice = (parameter.numel() + 1) / 2;  // rounded up to 64 bytes
      slices += (slice + 7) / 8 * 64;
    }
    const auto sent = before.find("all_reduce");
    EXPECT_EQ(after["all_reduce"].bytes - (sent == before.end() ? 0 : sent->second.bytes), slices);
  });
}

// Groups of a second mesh have other names, although the first mesh still exists.
TEST(ZeroHybridGroups, TwoMeshesOfAWorldAreIndependent) {
  run_ranks(4, [](const comm::Group& world) {
    Hybrid first(world, {2, 2, 3, true}, sgd()), second(world, {2, 2, 3, true}, sgd());
    first.train(0, 2);
    second.train(0, 2);
    expect_equal(first.m.net->values(), second.m.net->values());
  });
}

TEST(ZeroHybridMisuse, IsExplained) {
  run_ranks(2, [](const comm::Group& world) {
    const auto message = [&](const ShardOptions& options) {
      const NetModel m;
      return message_of([&] { zero_optimizer(sgd()(m.net->distinct()), m.model, world, options); });
    };
    EXPECT_THAT(message({.stage = 2, .shard_frozen = true}), HasSubstr("shard_frozen needs stage 3, got stage 2"));
    EXPECT_THAT(message({.stage = 3, .gathered_frozen_bytes = -2}),
                HasSubstr("-1 for half of the available memory, got -2"));
    EXPECT_THAT(message({.stage = 3, .shard_state_over_replicas = true}),
                HasSubstr("shard_state_over_replicas needs `replicas` and stage 2 or 3"));
  });
}

/// Blocks of which only the first and the last layer are trained.
struct FrozenBlocks {
  std::shared_ptr<Blocks> net = std::make_shared<Blocks>(4);
  std::vector<at::Tensor> trained;
  FrozenBlocks() {
    for (const auto& item : net->named_parameters()) {
      const bool frozen = item.key().starts_with("blocks.");
      item.value().requires_grad_(!frozen);
      if (!frozen) trained.push_back(item.value());
    }
  }
};

TEST(ZeroFrozen, IsShardedAndGathered) {
  FrozenBlocks alone;
  const OptimizerPtr one = sgd()(alone.trained);
  for (int64_t step = 0; step < 5; ++step) {
    one->zero_grad();
    alone.net->forward(rows(step, 0, 1)).square().mean().backward();
    one->step();
  }
  for (const bool reshard : {true, false}) {
    run_ranks(3, [&](const comm::Group& world) {
      FrozenBlocks blocks;
      const auto optimizer =
          zero_optimizer(sgd()(blocks.trained), Model::of(blocks.net), world,
                         {.stage = 3, .units = {"blocks.*"}, .reshard_after_forward = reshard, .shard_frozen = true});
      EXPECT_EQ(blocks.net->gathered(), 0);
      for (int64_t step = 0; step < 5; ++step) {
        optimizer->zero_grad();
        loss_of(*blocks.net, step, world).backward();
        optimizer->step();
      }
      expect_close(values_of(*blocks.net), values_of(*alone.net), 1e-9);
    });
  }
}

/// Bytes of this rank's slices: (8 · 8 + 8) · 2 elements of a frozen block, and those of `first` and `last`, rounded up to
/// 64 bytes.
constexpr int64_t frozen_slice = 8 * 144 / 2, trained_slice = 7 * 64;

/// Trains on several batches per step, and counts the bytes that a rank gathers.
struct GatheredBytes {
  FrozenBlocks blocks;
  std::shared_ptr<ShardedOptimizer> optimizer;
  comm::Group world;

  GatheredBytes(const comm::Group& ranks, bool reshard, int64_t limit) : world(ranks) {
    optimizer = zero_optimizer(sgd()(blocks.trained), Model::of(blocks.net), world,
                               {.stage = 3,
                                .units = {"blocks.*"},
                                .reshard_after_forward = reshard,
                                .shard_frozen = true,
                                .gathered_frozen_bytes = limit});
    in_step(3);  // learns the order of the buckets
  }
  int64_t in_step(int64_t batches) {
    const int64_t before = comm::traffic(world)["all_gather"].bytes;
    for (int64_t batch = 0; batch < batches; ++batch) loss_of(*blocks.net, batch, world).backward();
    optimizer->step();
    EXPECT_LE(blocks.net->gathered(), 99) << "only the trained bucket is gathered in advance";
    return comm::traffic(world)["all_gather"].bytes - before;
  }
};

TEST(ZeroFrozen, IsGatheredOncePerStep) {
  run_ranks(2, [](const comm::Group& world) {
    for (const int64_t limit : {-1, 4 * 2 * static_cast<int>(frozen_slice)}) {
      // The trained bucket is gathered before the step, and for each batch: once without resharding. With resharding, it is
      // freed while the frozen blocks compute, in forward and in backward.
      GatheredBytes kept(world, false, limit), resharded(world, true, limit);
      for (const int64_t batches : {1, 2, 5}) {
        EXPECT_EQ(kept.in_step(batches), 4 * frozen_slice + (1 + batches) * trained_slice) << batches;
        EXPECT_EQ(resharded.in_step(batches), 4 * frozen_slice + (1 + 2 * batches) * trained_slice) << batches;
      }
    }
  });
}

TEST(ZeroFrozen, TheLimitDecidesHowManyStay) {
  run_ranks(2, [](const comm::Group& world) {
    GatheredBytes none(world, true, 0), half(world, true, 2 * 2 * frozen_slice);
    const int64_t without = none.in_step(4), with_half = half.in_step(4);
    EXPECT_GT(without, 4 * 6 * frozen_slice) << "each batch gathers most blocks in forward and again in backward";
    EXPECT_GT(with_half, 4 * frozen_slice + 12 * trained_slice);
    EXPECT_LT(with_half, without - 2 * 4 * frozen_slice);
    half.blocks.net->most_gathered = 0;
    half.in_step(2);
    EXPECT_LE(half.blocks.net->most_gathered, (2 + 2) * 144) << "two that stay, one in use, one in advance";
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
