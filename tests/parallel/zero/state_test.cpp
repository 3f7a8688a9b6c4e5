#include "bellows/optim/state/state.h"

#include <gmock/gmock.h>

#include "tests/parallel/zero/support.h"
#include "tests/support/errors.h"

// The state of a sharded optimizer: whole, in parts, and how much of it a rank has.
namespace bellows::parallel::testing::zero {
namespace {

using optim::Impl;
using ::testing::HasSubstr;

std::vector<SavedTensor> described(const NamedTensors& tensors) {
  std::vector<SavedTensor> result;
  result.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) result.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return result;
}

/// What a sharded checkpoint does: the parts come out of whole tensors.
void load_parts(ShardedOptimizer& optimizer, const NamedTensors& saved) {
  const std::vector<comm::Shard> wanted = optimizer.wanted_shards(described(saved));
  for (const auto& [name, local, spec] : wanted) {
    for (const auto& [saved_name, tensor] : saved) {
      if (saved_name == name) local.copy_(comm::part_of(tensor, spec));
    }
  }
  optimizer.load_shards(wanted);
}

void copy_values(const Net& net, const std::vector<at::Tensor>& values) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = net.distinct();
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

/// What four ranks have after three steps.
struct Saved {
  NamedTensors state;
  std::vector<at::Tensor> values, later;  ///< the weights then, and three steps later
};

Saved save_on_four(int stage, const MakeOptimizer& make) {
  Saved saved;
  run_ranks(4, [&](const comm::Group& group) {
    Sharded sharded(group, stage, make);
    sharded.train(0, 3);
    const NamedTensors state = optim::state_dict(*sharded.optimizer);
    const std::vector<at::Tensor> values = sharded.m.net->values();  // all ranks gather parameters
    sharded.train(3, 6);
    const std::vector<at::Tensor> later = sharded.m.net->values();
    if (group.rank() == 0) saved = {state, values, later};
  });
  return saved;
}

TEST(ZeroState, SavedOnFourRanksLoadsOnAnyNumber) {
  const std::vector<MakeOptimizer> optimizers = {adamw(Impl::fused), sgd(Impl::loop), rmsprop(Impl::foreach)};
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const int stage = static_cast<int>(i) + 1;
    const Saved saved = save_on_four(stage, optimizers[i]);
    for (const int ranks : {1, 3, 4}) {
      run_ranks(ranks, [&](const comm::Group& group) {
        Sharded sharded(group, stage, optimizers[i]);
        sharded.optimizer->with_full_parameters([&] { copy_values(*sharded.m.net, saved.values); });
        load_parts(*sharded.optimizer, saved.state);
        expect_equal(optim::state_dict(*sharded.optimizer), saved.state);
        sharded.train(3, 6);
        expect_close(sharded.m.net->values(), saved.later, 1e-9);
        if (ranks == 4) expect_equal(sharded.m.net->values(), saved.later);
      });
    }
  }
}

TEST(ZeroState, IsWhatOneProcessHas) {
  Net alone;
  const OptimizerPtr optimizer = adamw()(alone.distinct());
  for (int64_t step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    alone.loss(step, 0, 1).backward();
    optimizer->step();
  }
  const NamedTensors state = optim::state_dict(*optimizer);
  for (const int stage : {1, 2, 3}) {
    run_ranks(3, [&](const comm::Group& group) {
      Sharded sharded(group, stage, adamw());
      sharded.train(0, 5);
      const NamedTensors same = optim::state_dict(*sharded.optimizer);
      ASSERT_EQ(same.size(), state.size());
      for (size_t i = 0; i < same.size(); ++i) {
        EXPECT_EQ(same[i].first, state[i].first);
        EXPECT_EQ(same[i].second.sizes(), state[i].second.sizes());
        EXPECT_TRUE(at::allclose(same[i].second, state[i].second, 1e-9, 1e-12)) << same[i].first;
      }
      optim::load_state_dict(*sharded.optimizer, state);  // of one process
      expect_equal(optim::state_dict(*sharded.optimizer), state);
    });
  }
}

TEST(ZeroState, OfBeforeIsShared) {
  for (const MakeOptimizer& make : {adamw(), rmsprop(Impl::loop)}) {
    const std::vector<at::Tensor> expected = train_alone(make, 8);
    run_ranks(2, [&](const comm::Group& group) {
      NetModel m;
      const OptimizerPtr optimizer = make(m.net->distinct());
      for (int64_t step = 0; step < 8; ++step) {
        optimizer->zero_grad();
        m.net->loss(step, 0, 1).backward();
        if (step == 4) break;
        optimizer->step();
      }
      const auto sharded = zero_optimizer(optimizer, m.model, group, {.stage = 1, .bucket_bytes = small_bucket});
      sharded->step();  // with the gradients that are there
      for (int64_t step = 5; step < 8; ++step) {
        sharded->zero_grad();
        m.net->loss(step, 0, 1).backward();
        sharded->step();
      }
      expect_close(m.net->values(), expected, 1e-9);
    });
  }
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.dim() > 0 ? static_cast<int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

/// Some thousand numbers in two tensors.
class Weights final : public Model::Impl {
 public:
  at::Tensor forward(const at::Tensor&) override { return a.sin().sum() + b.cos().sum(); }
  NamedTensors named_parameters() const override { return {{"a", a}, {"b", b}}; }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return true; }
  void to(c10::Device) override {}

  const at::Tensor a = made_up({128, 129}, at::kFloat, 1).requires_grad_(true);
  const at::Tensor b = made_up({1001}, at::kFloat, 2).requires_grad_(true);
};

TEST(ZeroState, OfARankIsItsShare) {
  constexpr int64_t bytes = 4 * (128 * 129 + 1001);
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const auto weights = std::make_shared<Weights>();
      const Model model("weights", weights);
      const auto optimizer = zero_optimizer(adamw()({weights->a, weights->b}), model, group, {.bucket_bytes = 1 << 15});
      model.forward(at::Tensor()).backward();
      optimizer->step();
      model.forward(at::Tensor()).backward();
      NamedTensors state = optim::state_dict(optimizer->local());
      std::erase_if(state, [](const auto& item) { return item.first.starts_with("param_groups"); });
      NamedTensors gradients;
      for (const at::Tensor& part : optimizer->param_groups().front().params()) {
        if (part.grad().defined()) gradients.emplace_back("", part.grad());
      }
      EXPECT_FALSE(weights->a.grad().defined() || weights->b.grad().defined());
      EXPECT_NEAR(bytes_of(gradients), bytes / ranks, bytes / ranks / 20);
      EXPECT_NEAR(bytes_of(state), 2 * bytes / ranks, 2 * bytes / ranks / 20);
    });
  }
}

TEST(ZeroState, OfOthersIsRefusedInWords) {
  run_ranks(2, [](const comm::Group& group) {
    Sharded sharded(group, 2, adamw());
    sharded.train(0, 2);
    const NamedTensors state = optim::state_dict(*sharded.optimizer);
    const auto load_with = [&](size_t index, const std::string& name, const at::Tensor& tensor) {
      NamedTensors other = state;
      other[index] = {name, tensor};
      return message_of([&] { optim::load_state_dict(*sharded.optimizer, other); });
    };
    EXPECT_THAT(load_with(1, "state.17.exp_avg", at::zeros({3})), HasSubstr("the optimizer has 9 parameters"));
    EXPECT_THAT(load_with(1, state[1].first, at::zeros({6, 2, 3, 4})), HasSubstr("parameter \"conv.weight\" has"));
    NamedTensors more = state;
    more.emplace_back("nothing", at::zeros({1}));
    EXPECT_THAT(message_of([&] { optim::load_state_dict(*sharded.optimizer, more); }),
                HasSubstr("contains \"nothing\""));
    expect_equal(optim::state_dict(*sharded.optimizer), state);
    EXPECT_THAT(message_of([&] { sharded.optimizer->load_shards({sharded.optimizer->state_shards().front()}); }),
                HasSubstr("missing"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
