#include <gmock/gmock.h>

#include <array>

#include "bellows/checkpoint/format.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/optim/gradient_accumulator.h"
#include "bellows/optim/state/state.h"
#include "tests/checkpoint/support.h"
#include "tests/parallel/saved_tensors.h"
#include "tests/parallel/zero/support.h"
#include "tests/support/errors.h"

// State of 8 and 4 bits under a sharded optimizer: cut between blocks, coded as one process codes it.
namespace bellows::parallel::testing::zero {
namespace {

using optim::State;
using ::testing::HasSubstr;

/// Parameters of many blocks and a rest, of which two ranks and three get unequal parts; one of a block; ones that stay
/// in fp32, of which one is channels-last. Every rank computes the same gradients.
class LowBitBlocks final : public Model::Impl {
 public:
  explicit LowBitBlocks(at::ScalarType dtype = at::kFloat) {
    double seed = 0;
    const std::vector<std::vector<int64_t>> sizes = {{3, 2, 5, 5}, {61, 67}, {300}, {37}, {1999}, {256}};
    for (const auto& size : sizes) {
      at::Tensor p = made_up(size, dtype, ++seed);
      if (p.dim() == 4) p = p.contiguous(at::MemoryFormat::ChannelsLast);
      named_.emplace_back(c10::str("p", named_.size()), p.requires_grad_(true));
    }
  }
  at::Tensor forward(const at::Tensor& step) override {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, p] : named_) {
      loss = loss + (p.to(at::kFloat) * made_up(p.sizes(), at::kFloat, step.item<double>())).sin().sum();
    }
    return loss;
  }
  NamedTensors named_parameters() const override { return named_; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return true; }
  void to(c10::Device) override {}

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    result.reserve(named_.size());
    for (const auto& [name, p] : named_) result.push_back(p);
    return result;
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> result;
    result.reserve(named_.size());
    for (const auto& [name, p] : named_) result.push_back(p.detach().clone());
    return result;
  }
  void train(torch::optim::Optimizer& optimizer, int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      optimizer.zero_grad();
      forward(at::scalar_tensor(static_cast<double>(step) / 3, at::kDouble)).backward();
      optimizer.step();
    }
  }

 private:
  NamedTensors named_;
};

constexpr int64_t smallest = 200;  ///< elements of a parameter with low-bit state

struct LowBitCase {
  const char* name;
  at::ScalarType dtype;
  MakeOptimizer make;
};

std::vector<LowBitCase> low_bit_cases() {
  const auto adamw = [](State state, bool masters) {
    return [=](std::vector<at::Tensor> p) -> OptimizerPtr {
      return std::make_shared<optim::AdamW>(
          std::move(p),
          optim::AdamWOptions{.lr = 0.01, .master_weights = masters, .state_dtype = state, .min_8bit_size = smallest});
    };
  };
  return {{"int8", at::kFloat, adamw(State::int8, false)},
          {"int4", at::kFloat, adamw(State::int4, false)},
          {"int8 with masters", at::kBFloat16, adamw(State::int8, true)},
          {"int8 momentum", at::kFloat, [](std::vector<at::Tensor> p) -> OptimizerPtr {
             return std::make_shared<optim::SGD>(
                 std::move(p),
                 optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .state_dtype = State::int8, .min_8bit_size = smallest});
           }}};
}

struct ShardedLowBitBlocks {
  std::shared_ptr<LowBitBlocks> blocks;
  std::shared_ptr<ShardedOptimizer> optimizer;
  ShardedLowBitBlocks(const comm::Group& group, int stage, const LowBitCase& one)
      : blocks(std::make_shared<LowBitBlocks>(one.dtype)) {
    optimizer = zero_optimizer(one.make(blocks->parameters()), Model("blocks", blocks), group,
                               {.stage = stage, .bucket_bytes = 9000});
  }
};

/// What one process has behind its first steps and behind all.
struct Alone {
  NamedTensors state;
  std::vector<at::Tensor> values, later;
};

constexpr int64_t first_steps = 4, all_steps = 7;

Alone train_blocks_alone(const LowBitCase& one) {
  const OneThread one_thread;
  LowBitBlocks blocks(one.dtype);
  const OptimizerPtr optimizer = one.make(blocks.parameters());
  blocks.train(*optimizer, 0, first_steps);
  Alone result{{}, blocks.values(), {}};
  for (const auto& [name, tensor] : optim::state_dict(*optimizer)) result.state.emplace_back(name, tensor.clone());
  blocks.train(*optimizer, first_steps, all_steps);
  result.later = blocks.values();
  return result;
}

// Stages 2 and 3 on three ranks would divide a sum of three, which rounds; two and four are exact.
TEST(ZeroLowBit, CodesWhatOneProcessCodes) {
  const std::vector<LowBitCase> cases = low_bit_cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const LowBitCase& one = cases[i];
    const Alone alone = train_blocks_alone(one);
    const auto worlds =
        i % 2 == 0 ? std::array{std::pair(3, 1), std::pair(2, 2)} : std::array{std::pair(2, 3), std::pair(4, 2)};
    for (const auto& [ranks, stage] : worlds) {
      SCOPED_TRACE(c10::str(one.name, ", stage ", stage, " on ", ranks));
      run_ranks(ranks, [&, stage = stage](const comm::Group& group) {
        ShardedLowBitBlocks sharded(group, stage, one);
        sharded.blocks->train(*sharded.optimizer, 0, first_steps);
        expect_equal(sharded.blocks->values(), alone.values);
        expect_equal(optim::state_dict(*sharded.optimizer), alone.state);
        sharded.blocks->train(*sharded.optimizer, first_steps, all_steps);
        expect_equal(sharded.blocks->values(), alone.later);
      });
    }
  }
}

TEST(ZeroLowBit, AFolderOfTwoRanksLoadsOnOneAndThree) {
  for (const size_t i : {1, 2}) {  // codes of half a byte, and masters beside codes; each save waits for the disk
    const LowBitCase one = low_bit_cases()[i];
    SCOPED_TRACE(one.name);
    const Alone alone = train_blocks_alone(one);
    const checkpoint::TemporaryFolder temporary;
    run_ranks(2, [&](const comm::Group& group) {
      ShardedLowBitBlocks sharded(group, 1, one);
      sharded.blocks->train(*sharded.optimizer, 0, first_steps);
      checkpoint::save_sharded(temporary / "step", {.optimizer = sharded.optimizer->state_shards()}, group);
    });
    for (const int ranks : {1, 3}) {
      run_ranks(ranks, [&](const comm::Group& group) {
        ShardedLowBitBlocks sharded(group, 1, one);
        checkpoint::ShardedState state;
        checkpoint::load_sharded(temporary / "step", state, group, [&](const auto& saved, auto& wanted) {
          wanted.optimizer = sharded.optimizer->wanted_shards(optimizer_tensors(saved));
        });
        sharded.optimizer->load_shards(state.optimizer);
        expect_equal(optim::state_dict(*sharded.optimizer), alone.state);
      });
    }
  }
}

TEST(ZeroLowBit, OfOneProcessIsTakenOverAndGivenBack) {
  for (const LowBitCase& one : low_bit_cases()) {
    SCOPED_TRACE(one.name);
    const Alone alone = train_blocks_alone(one);
    run_ranks(3, [&](const comm::Group& group) {
      const auto blocks = std::make_shared<LowBitBlocks>(one.dtype);
      const OptimizerPtr optimizer = one.make(blocks->parameters());
      blocks->train(*optimizer, 0, first_steps);  // before it is sharded
      const auto sharded =
          zero_optimizer(optimizer, Model("blocks", blocks), group, {.stage = 1, .bucket_bytes = 9000});
      blocks->train(*sharded, first_steps, all_steps);
      expect_equal(blocks->values(), alone.later);
      optim::load_state_dict(*sharded, alone.state);
      expect_equal(optim::state_dict(*sharded), alone.state);
    });
  }
}

TEST(ZeroLowBit, OfARankIsItsShare) {
  const LowBitCase one = low_bit_cases().front();
  run_ranks(4, [&](const comm::Group& group) {
    ShardedLowBitBlocks sharded(group, 2, one);
    sharded.blocks->train(*sharded.optimizer, 0, 1);
    int64_t bytes = 0;
    for (const auto& [name, tensor] : optim::state_dict(sharded.optimizer->local())) {
      if (tensor.dim() > 0 && name.starts_with("state.")) bytes += static_cast<int64_t>(tensor.nbytes());
    }
    // Two bytes an element of 6642 in 27 blocks with two scales, eight of 187 in fp32: each once.
    constexpr int64_t all = 2 * 6642 + 2 * 4 * 27 + 8 * 187;
    EXPECT_LT(bytes, all / 2);
    EXPECT_EQ(comm::all_reduce(at::scalar_tensor(bytes, at::kLong), group).item<int64_t>(), all);
  });
}

TEST(ZeroLowBit, StateOfAnotherKindIsRefusedOnEveryRank) {
  const std::vector<LowBitCase> cases = low_bit_cases();
  const NamedTensors eight = train_blocks_alone(cases[0]).state, four = train_blocks_alone(cases[1]).state;
  LowBitCase full{"fp32", at::kFloat, adamw()};
  const NamedTensors single = train_blocks_alone(full).state;
  NamedTensors other_layout = eight;
  for (auto& [name, tensor] : other_layout) {
    if (tensor.dim() == 2) tensor = tensor.t().contiguous().t();
  }
  run_ranks(2, [&](const comm::Group& group) {
    const auto message = [&](const LowBitCase& into, const NamedTensors& state) {
      ShardedLowBitBlocks sharded(group, 1, into);
      return message_of([&] { optim::load_state_dict(*sharded.optimizer, state); });
    };
    EXPECT_THAT(message(cases[0], single),
                HasSubstr("floating-point state, but this optimizer has another kind of state"));
    EXPECT_THAT(message(full, eight), HasSubstr("low-bit state, but this optimizer has another kind of state"));
    EXPECT_THAT(message(cases[0], four), HasSubstr("another block size or state_dtype"));
    EXPECT_THAT(message(cases[1], eight), HasSubstr("another block size or state_dtype"));
    EXPECT_THAT(message(cases[0], other_layout), HasSubstr("Low-bit blocks follow the memory"));
  });
}

TEST(ZeroSums, OfAnotherTypeAreSteppedWith) {
  const LowBitCase one = low_bit_cases()[2];  // bf16 weights
  const auto train = [](LowBitBlocks& blocks, torch::optim::Optimizer& optimizer) {
    const optim::GradientAccumulator sums(blocks.parameters());
    for (int64_t step = 0; step < 6; ++step) {
      blocks.forward(at::scalar_tensor(static_cast<double>(step) / 3, at::kDouble)).backward();
      EXPECT_EQ(blocks.parameters().front().grad().scalar_type(), at::kFloat);
      if (step % 2 == 0) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
    return blocks.values();
  };
  LowBitBlocks alone(one.dtype);
  const std::vector<at::Tensor> expected = train(alone, *one.make(alone.parameters()));
  run_ranks(2, [&](const comm::Group& group) {
    ShardedLowBitBlocks sharded(group, 1, one);
    expect_equal(train(*sharded.blocks, *sharded.optimizer), expected);
    EXPECT_THAT(message_of([&] {
                  const ShardedLowBitBlocks second(group, 2, one);
                  const optim::GradientAccumulator sums(second.blocks->parameters());
                }),
                HasSubstr("hook"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
