#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "bellows/optim/state/state.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/zero_support.h"
#include "tests/support/errors.h"

// ZeRO-3: which parameters are in memory, what may be done with them, and how they are saved.
namespace bellows::parallel::testing::zero {
namespace {

using ::testing::HasSubstr;

bool is_gathered(const at::Tensor& parameter) {
  const auto& memory =
      parameter.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return memory.get() != nullptr;
}

/// Blocks of two layers each, of which every other tensor belongs to the root.
struct Blocks final : torch::nn::Module {
  explicit Blocks(int64_t count, int64_t width = 8) {
    first = register_module("first", torch::nn::Linear(width, width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < count; ++i) {
      blocks->push_back(
          torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::Tanh(), torch::nn::Linear(width, width)));
    }
    last = register_module("last", torch::nn::Linear(width, 3));
    to(at::kDouble);
    const c10::NoGradGuard no_grad;
    double seed = 0;  // ranks share the random generators
    for (const at::Tensor& parameter : parameters()) parameter.copy_(made_up(parameter.sizes(), at::kDouble, ++seed));
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x);
    for (const auto& block : *blocks) {
      x = x + block->as<torch::nn::Sequential>()->forward(x);
      most_gathered = std::max(most_gathered, gathered());
    }
    return last(x);
  }
  int64_t gathered() {
    int64_t count = 0;
    for (const at::Tensor& parameter : parameters()) count += is_gathered(parameter) ? parameter.numel() : 0;
    return count;
  }
  torch::nn::Linear first = nullptr, last = nullptr;
  torch::nn::ModuleList blocks = nullptr;
  int64_t most_gathered = 0;
};

struct ShardedBlocks {
  std::shared_ptr<Blocks> net;
  Model model;
  std::shared_ptr<ShardedOptimizer> optimizer;

  explicit ShardedBlocks(const comm::Group& group, ShardOptions options = {}, int64_t count = 6)
      : net(std::make_shared<Blocks>(count)), model(Model::of(net)) {
    options.stage = 3;
    if (options.units.empty()) options.units = {"blocks.*"};
    optimizer = zero_optimizer(sgd()(net->parameters()), model, group, options);
  }
};

at::Tensor rows(int64_t step, int64_t rank, int64_t ranks) {
  return made_up({12, 8}, at::kDouble, static_cast<double>(step)).chunk(ranks)[rank];
}

at::Tensor loss_of(Blocks& net, int64_t step, const comm::Group& group) {
  return net.forward(rows(step, group.rank(), group.size())).square().mean();
}

void train(ShardedBlocks& sharded, int64_t steps, const comm::Group& group) {
  for (int64_t step = 0; step < steps; ++step) {
    sharded.optimizer->zero_grad();
    loss_of(*sharded.net, step, group).backward();
    sharded.optimizer->step();
  }
}

std::vector<at::Tensor> values_of(const Blocks& net) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

std::vector<at::Tensor> blocks_alone(int64_t steps, int64_t count = 6) {
  const auto net = std::make_shared<Blocks>(count);
  const OptimizerPtr optimizer = sgd()(net->parameters());
  for (int64_t step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    net->forward(rows(step, 0, 1)).square().mean().backward();
    optimizer->step();
  }
  return values_of(*net);
}

TEST(ZeroParameters, TwoBlocksAreInMemory) {
  run_ranks(2, [](const comm::Group& group) {
    ShardedBlocks sharded(group, {.bucket_bytes = 1});
    EXPECT_EQ(sharded.net->gathered(), 0);
    train(sharded, 3, group);
    sharded.net->most_gathered = 0;
    loss_of(*sharded.net, 0, group).backward();
    constexpr int64_t block = 2 * (8 * 8 + 8);
    EXPECT_LE(sharded.net->most_gathered, 2 * block);
    EXPECT_GE(sharded.net->most_gathered, block);
    sharded.optimizer->release_parameters();
    EXPECT_EQ(sharded.net->gathered(), 0);
  });
}

TEST(ZeroParameters, UnitsAreModules) {
  const std::vector<at::Tensor> expected = blocks_alone(6);
  for (const bool reshard : {true, false}) {
    run_ranks(3, [&](const comm::Group& group) {
      ShardedBlocks sharded(group, {.reshard_after_forward = reshard});
      train(sharded, 6, group);
      expect_close(values_of(*sharded.net), expected, 1e-9);
    });
  }
}

int64_t bytes_gathered(const comm::Group& group) {
  const auto traffic = comm::traffic(group);
  const auto found = traffic.find("all_gather");
  return found == traffic.end() ? 0 : found->second.bytes;
}

TEST(ZeroParameters, WithoutReshardingBackwardGathersNothing) {
  run_ranks(2, [](const comm::Group& group) {
    for (const bool reshard : {true, false}) {
      ShardedBlocks sharded(group, {.bucket_bytes = 1, .reshard_after_forward = reshard});
      train(sharded, 3, group);
      const at::Tensor loss = loss_of(*sharded.net, 0, group);
      const int64_t before = bytes_gathered(group);
      loss.backward();
      EXPECT_EQ(bytes_gathered(group) == before, !reshard);
      EXPECT_EQ(sharded.net->gathered() <= 4 * (8 * 8 + 8), true);
    }
  });
}

TEST(ZeroParameters, OnlyFullParametersCanBeWritten) {
  run_ranks(2, [](const comm::Group& group) {
    ShardedBlocks sharded(group);
    const at::Tensor weight = sharded.net->first->weight;
    const c10::NoGradGuard no_grad;
    EXPECT_THAT(message_of([&] { weight.zero_(); }), HasSubstr("aten::zero_ writes to a parameter that is sharded"));
    EXPECT_THAT(message_of([&] { weight.detach().t().mul_(2); }), HasSubstr("aten::mul_.Scalar writes to a parameter"));
    sharded.optimizer->step();  // starts to gather the first bucket
    EXPECT_THAT(message_of([&] { weight.data_ptr<double>(); }), HasSubstr("this rank has only a part of it"));
    const auto fill_and_fail = [&] {
      weight.fill_(7);
      throw std::runtime_error("no space");
    };
    EXPECT_THROW(sharded.optimizer->with_full_parameters(fill_and_fail), std::runtime_error);
    EXPECT_FALSE(weight.eq(7).any().item<bool>());
    sharded.optimizer->with_full_parameters([&] { weight.fill_(0.25); });
    EXPECT_FALSE(is_gathered(weight));
    EXPECT_TRUE(weight.eq(0.25).all().item<bool>());
    {
      const c10::AutoGradMode enable_grad(true);
      train(sharded, 1, group);
    }
    EXPECT_FALSE(weight.eq(0.25).all().item<bool>());
  });
}

TEST(ZeroParameters, ModelsAreSavedAndLoadedInParts) {
  NamedTensors saved;
  std::vector<at::Tensor> expected;
  run_ranks(3, [&](const comm::Group& group) {
    ShardedBlocks sharded(group);
    train(sharded, 2, group);
    const NamedTensors whole = comm::gather(sharded.optimizer->parameter_shards(), group);
    const std::vector<at::Tensor> values = values_of(*sharded.net);
    if (group.rank() != 0) return;
    saved = whole;
    expected = values;
  });
  run_ranks(2, [&](const comm::Group& group) {
    ShardedBlocks sharded(group);
    for (const auto& [name, local, spec] : sharded.optimizer->parameter_shards()) {
      for (const auto& [saved_name, tensor] : saved) {
        if (name == saved_name) at::Tensor(local).copy_(comm::part_of(tensor, spec));
      }
    }
    sharded.optimizer->release_parameters();
    expect_equal(values_of(*sharded.net), expected);
  });
}

// Ranks evaluate different numbers of batches.
TEST(ZeroParameters, GatheredParametersStayUntilTheNextStep) {
  const std::vector<at::Tensor> expected = blocks_alone(4);
  run_ranks(2, [&](const comm::Group& group) {
    ShardedBlocks sharded(group);
    for (int64_t step = 0; step < 4; ++step) {
      sharded.optimizer->gather_parameters();
      for (int batch = 0; batch < 1 + group.rank(); ++batch) {
        const c10::NoGradGuard no_grad;
        sharded.net->forward(rows(batch, 0, 1));
      }
      if (step % 2 == 0) sharded.optimizer->release_parameters();
      sharded.optimizer->zero_grad();
      loss_of(*sharded.net, step, group).backward();
      sharded.optimizer->step();
    }
    expect_close(values_of(*sharded.net), expected, 1e-9);
  });
}

TEST(ZeroParameters, AreUsedInLowPrecisionAndUpdatedInFull) {
  const std::vector<at::Tensor> expected = blocks_alone(6);
  run_ranks(2, [&](const comm::Group& group) {
    ShardedBlocks sharded(group, {.parameter_dtype = at::kFloat, .reduce_dtype = at::kDouble});
    for (int64_t step = 0; step < 6; ++step) {
      sharded.optimizer->zero_grad();
      const at::Tensor x = rows(step, group.rank(), group.size()).to(at::kFloat);
      sharded.net->forward(x).square().mean().backward();
      sharded.optimizer->step();
    }
    EXPECT_EQ(sharded.net->first->weight.scalar_type(), at::kFloat);
    sharded.optimizer->with_full_parameters([] {});  // does not round the shards
    std::map<std::string, at::Tensor> masters;
    for (const auto& [name, tensor] : comm::gather(sharded.optimizer->parameter_shards(), group))
      masters[name] = tensor;
    size_t i = 0;
    for (const auto& [name, parameter] : sharded.model.named_parameters()) {
      ASSERT_EQ(masters.at(name).scalar_type(), at::kDouble);
      EXPECT_TRUE(at::allclose(masters.at(name), expected[i++], 1e-5, 1e-6)) << name;
    }
  });
}

TEST(ZeroParameters, RecomputedBlocksGatherAgain) {
  const std::vector<at::Tensor> expected = blocks_alone(4);
  run_ranks(2, [&](const comm::Group& group) {
    ShardedBlocks sharded(group);
    for (int64_t step = 0; step < 4; ++step) {
      sharded.optimizer->zero_grad();
      at::Tensor x = sharded.net->first(rows(step, group.rank(), group.size()));
      for (const auto& block : *sharded.net->blocks) {
        x = x + recompute::checkpoint(
                    [block](const at::Tensor& in) { return block->as<torch::nn::Sequential>()->forward(in); }, x);
      }
      sharded.net->last(x).square().mean().backward();
      sharded.optimizer->step();
    }
    expect_close(values_of(*sharded.net), expected, 1e-9);
  });
}

TEST(ZeroParameters, PatternsThatMatchNothingAreExplained) {
  run_ranks(2, [](const comm::Group& group) {
    const auto message = [&](std::vector<std::string> units) {
      return message_of([&] { ShardedBlocks(group, {.units = std::move(units)}); });
    };
    EXPECT_THAT(message({"block"}),
                HasSubstr("no module with parameters matches \"block\" in `units`. Did you mean \"blocks\"?"));
    EXPECT_THAT(message({"blocks.*", "blocks"}),
                HasSubstr("belongs to a module that matches \"blocks\", and to one that "
                          "matches \"blocks.*\""));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
