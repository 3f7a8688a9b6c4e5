#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "bellows/optim/state/state.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/zero/blocks.h"
#include "tests/support/errors.h"

// ZeRO-3: which parameters are in memory, what may be done with them, and how they are saved.
namespace bellows::parallel::testing::zero {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
    const NamedTensors whole = comm::gather(parts_of(sharded), group);
    const std::vector<at::Tensor> values = values_of(*sharded.net);
    if (group.rank() != 0) return;
    saved = whole;
    expected = values;
  });
  run_ranks(2, [&](const comm::Group& group) {
    ShardedBlocks sharded(group);
    for (const auto& [name, local, spec] : parts_of(sharded)) {
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
    for (const auto& [name, tensor] : comm::gather(parts_of(sharded), group)) masters[name] = tensor;
    size_t i = 0;
    for (const auto& [name, parameter] : sharded.model.named_parameters()) {
      ASSERT_EQ(masters.at(name).scalar_type(), at::kDouble);
      EXPECT_TRUE(at::allclose(masters.at(name), expected[i++], 1e-5, 1e-6)) << name;
    }
  });
}

TEST(ZeroParameters, FullParametersAreNotRounded) {
  run_ranks(2, [](const comm::Group& group) {
    ShardedBlocks sharded(group, {.parameter_dtype = at::kBFloat16});
    const at::Tensor weight = sharded.net->first->weight;
    const std::vector<at::Tensor> before = values_of(Blocks(6));
    sharded.optimizer->with_full_parameters([&] {
      expect_equal(values_of(*sharded.net), before);
      const c10::NoGradGuard no_grad;
      weight.mul_(1.0 / 3);
    });
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    EXPECT_FALSE(is_gathered(weight));
    const at::Tensor expected = before.front() * (1.0 / 3);
    EXPECT_TRUE(at::equal(weight.detach(), expected.to(at::kBFloat16)));
    const auto fill_and_fail = [&] {
      const c10::NoGradGuard no_grad;
      weight.fill_(7);
      throw std::runtime_error("no space");
    };
    EXPECT_THROW(sharded.optimizer->with_full_parameters(fill_and_fail), std::runtime_error);
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    const auto complete = [&]() -> at::Tensor {
      const NamedTensors all = comm::gather(parts_of(sharded), group);
      return std::map<std::string, at::Tensor>(all.begin(), all.end()).at("first.weight");
    };
    EXPECT_TRUE(at::equal(complete(), expected));
    const at::Tensor x = rows(0, group.rank(), group.size()).to(at::kBFloat16);
    sharded.net->forward(x).square().mean().backward();  // the parameters still work in low precision
    sharded.optimizer->step();
    EXPECT_FALSE(at::equal(complete(), expected));
    EXPECT_TRUE(at::equal(weight.detach(), complete().to(at::kBFloat16)));
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
    EXPECT_THAT(message({"block"}), AllOf(HasSubstr("no module with parameters matches \"block\" in `units`."),
                                          HasSubstr("Did you mean \"blocks\"?")));
    EXPECT_THAT(message({"blocks.*", "blocks"}),
                HasSubstr("belongs to a module that matches \"blocks\", and to one that "
                          "matches \"blocks.*\""));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
