#include <gmock/gmock.h>

#include <new>
#include <optional>

#include "bellows/amp/master_weights.h"
#include "bellows/comm/mesh.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/zero/gradient_buckets.h"
#include "bellows/parallel/zero/shard_layout.h"
#include "tests/parallel/zero/support.h"
#include "tests/support/errors.h"
#include "tests/support/failing_allocation.h"

namespace bellows::parallel::testing::zero {
namespace {

using ::testing::HasSubstr;

struct NoOptions final : torch::optim::OptimizerCloneableOptions<NoOptions> {};

class LBFGSLike final : public torch::optim::Optimizer {
 public:
  explicit LBFGSLike(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<NoOptions>()) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(ZeroMisuse, IsToldInWords) {
  const auto message = [](NetModel& m, OptimizerPtr optimizer, const ShardOptions& options = {}) {
    return message_of([&] { zero_optimizer(std::move(optimizer), m.model, alone(), options); });
  };
  NetModel m, other;
  EXPECT_THAT(message(m, adamw()(m.net->distinct()), {.stage = 4}), HasSubstr("expected stage 1, 2 or 3, got 4"));
  EXPECT_THAT(message(m, adamw()(m.net->distinct()), {.bucket_bytes = 0}), HasSubstr("bucket_bytes above 0"));
  EXPECT_THAT(message(m, nullptr), HasSubstr("got null"));
  EXPECT_THAT(message(m, adamw()(other.net->distinct())), HasSubstr("does not belong to model \"net\""));
  EXPECT_THAT(message(m, std::make_shared<LBFGSLike>(m.net->distinct())),
              HasSubstr("LBFGSLike needs complete gradients"));
  const auto adafactor = std::make_shared<optim::Adafactor>(m.net->distinct(), optim::AdafactorOptions{});
  EXPECT_THAT(message(m, adafactor), HasSubstr("Adafactor needs complete gradients"));
  const auto whole = [&](auto optimizer) { return message(m, std::move(optimizer)); };
  EXPECT_THAT(whole(std::make_shared<optim::Lamb>(m.net->distinct(), optim::LambOptions{})),
              HasSubstr("Lamb needs complete gradients"));
  EXPECT_THAT(whole(std::make_shared<optim::Muon>(m.net->distinct(), optim::MuonOptions{})),
              HasSubstr("Muon needs complete gradients"));
  const auto larc = std::make_shared<optim::SGD>(m.net->distinct(), optim::SGDOptions{});
  larc->set_larc(optim::LarcOptions{});
  EXPECT_THAT(whole(larc), HasSubstr("LARC needs the norms of complete parameters"));
  NetModel half(at::kBFloat16);
  const optim::AdamWOptions at_random{.stochastic_rounding = true};
  EXPECT_THAT(message(half, std::make_shared<optim::AdamW>(half.net->distinct(), at_random)),
              HasSubstr("stochastic rounding depends on the elements of complete parameters"));
  const optim::AdamWOptions eight_bits{.state_dtype = optim::State::int8, .min_8bit_size = 20};
  EXPECT_THAT(message(half, std::make_shared<optim::AdamW>(half.net->distinct(), eight_bits)),
              HasSubstr("parameters are row-major, but \"conv.weight\" has shape"));
  EXPECT_THAT(message(m, adamw()({m.net->distinct().back()})), HasSubstr("no parameter of model"));
  const OptimizerPtr with_lr = std::make_shared<optim::AdamW>(
      m.net->distinct(), optim::AdamWOptions{.lr_tensor = at::full({}, 0.1, at::kDouble)});
  EXPECT_THAT(message(m, with_lr), HasSubstr("lr_tensor"));
  NetModel low(at::kBFloat16);
  const OptimizerPtr optimizer = adamw()(low.net->distinct());
  const amp::MasterWeights masters(low.model.named_parameters());
  masters.attach(*optimizer);
  EXPECT_THAT(message(low, optimizer), HasSubstr("use master_weights of bellows::optim"));
  const auto sharded = zero_optimizer(adamw()(m.net->distinct()), m.model, alone());
  EXPECT_THAT(message(m, sharded), HasSubstr("already sharded"));
  EXPECT_THAT(message(m, adamw()(m.net->distinct())), HasSubstr("belongs to another sharded optimizer"));
}

TEST(ZeroMisuse, RanksWithOtherParametersAreNamed) {
  run_ranks(2, [](const comm::Group& group) {
    const std::string message = message_of([&] {
      NetModel m;
      std::vector<at::Tensor> parameters = m.net->distinct();
      if (group.rank() == 1) parameters.erase(parameters.begin() + 1);
      zero_optimizer(adamw()(parameters), m.model, group);
    });
    EXPECT_THAT(message, HasSubstr("(group world): tensor 2 is fc.weight Double[7, 6], strides [6, 1] on rank 1, and "
                                   "conv.bias Double[6], strides [1] on rank 0"));
  });
}

TEST(ZeroMisuse, MemoryOfTwoParametersIsRefused) {
  const at::Tensor whole = at::zeros({4});
  const std::pair<std::string, at::Tensor> a{"a", whole.narrow(0, 0, 3)}, b{"b", whole.narrow(0, 2, 2)};
  for (const NamedTensors& parameters : {NamedTensors{a, b}, NamedTensors{b, a}}) {
    EXPECT_THAT(message_of([&] { lay_out(parameters, {}, {alone()}, {.bucket_bytes = 1 << 20}); }),
                HasSubstr("\"a\" and \"b\" share memory"));
  }
}

// One parameter has a hook on one rank, so GradientShards cannot be created there.
TEST(ZeroMisuse, ModelAndOptimizerKeepTheirValuesIfGradientsCannotBeSharded) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    run_ranks(2, [&](const comm::Group& group) {
      NetModel m;
      const OptimizerPtr optimizer = adamw()(m.net->distinct());
      m.net->loss(0, 0, 1).backward();
      optimizer->step();
      optimizer->zero_grad();
      const std::vector<at::Tensor> values = m.net->values();
      NamedTensors state = optim::state_dict(*optimizer);
      for (auto& [name, tensor] : state) tensor = tensor.clone();
      const ShardOptions options{.stage = stage, .bucket_bytes = small_bucket};
      {
        std::optional<tap::GradientTap> hook;
        if (group.rank() == 1) hook.emplace(m.net->distinct()[3], [](const at::Tensor&) {});
        EXPECT_THAT(message_of([&] { zero_optimizer(optimizer, m.model, group, options); }),
                    HasSubstr("already has a post-accumulate-grad hook"));
      }
      expect_equal(m.net->values(), values);
      expect_equal(optim::state_dict(*optimizer), state);
      const auto sharded = zero_optimizer(optimizer, m.model, group, options);
      expect_equal(m.net->values(), values);
      m.net->loss(1, group.rank(), group.size()).backward();
      sharded->step();
      EXPECT_FALSE(at::equal(m.net->values().front(), values.front()));
    });
  }
}

TEST(ZeroMisuse, GradientShardsThatCannotBeCreatedLeaveNothingBehind) {
  const ShardGroups groups{alone()};
  const auto layout_of = [&](const NetModel& m) {
    NamedTensors trained;
    for (const at::Tensor& parameter : m.net->distinct()) {
      if (parameter.requires_grad()) trained.emplace_back(c10::str("parameter ", trained.size()), parameter);
    }
    return lay_out(trained, {}, groups, {.bucket_bytes = small_bucket});
  };
  const NetModel m, other;
  Layout layout = layout_of(m), others_layout = layout_of(other);
  const GradientShards others(others_layout, groups, groups.shard);  // without any, gradient_part() looks nothing up
  bool fired = true;
  int64_t k = 1;
  for (; fired; ++k) {
    test::FailAllocation guard(k);
    try {
      const GradientShards shards(layout, groups, groups.shard);
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(guard.fired());
    }
    guard.stop();
    fired = guard.fired();
    for (const Place& place : layout.places)
      ASSERT_EQ(gradient_part(place.parameter).owner, nullptr) << place.name << ", allocation " << k;
  }
  EXPECT_GT(k, static_cast<int64_t>(3 * layout.places.size())) << "each parameter needs allocations";
}

TEST(ZeroMisuse, FrozenParametersStayFrozen) {
  run_ranks(2, [](const comm::Group& group) {
    Sharded sharded(group, 2, sgd());
    const at::Tensor frozen = sharded.m.net->distinct().back();
    frozen.set_requires_grad(true);
    sharded.backward(0);
    EXPECT_THAT(message_of([&] { sharded.optimizer->step(); }), HasSubstr("was frozen when the optimizer was sharded"));
    frozen.mutable_grad().reset();
    sharded.optimizer->step();  // with the gradients of the backward pass above
    frozen.set_requires_grad(false);
    Sharded other(group, 2, sgd());
    other.train(0, 1);
    expect_equal(sharded.m.net->values(), other.m.net->values());
  });
}

TEST(ZeroMisuse, RanksWithOtherOptionsAreNamed) {
  const ShardOptions same{.stage = 3, .bucket_bytes = small_bucket};
  const auto with = [&](const auto& change) {
    ShardOptions options = same;
    change(options);
    return options;
  };
  const std::vector<std::pair<ShardOptions, std::string>> others{
      {with([](ShardOptions& o) { o.stage = 2; }), "stage 2 on rank 1, and stage 3 on rank 0"},
      {with([](ShardOptions& o) { o.bucket_bytes = 1; }), "bucket_bytes 1 on rank 1, and bucket_bytes 600 on rank 0"},
      {with([](ShardOptions& o) {
         o.units = {"a", "b"};
       }),
       "units {a, b} on rank 1, and units {} on rank 0"},
      {with([](ShardOptions& o) { o.reshard_after_forward = false; }), "reshard_after_forward false on rank 1"},
      {with([](ShardOptions& o) { o.parameter_dtype = at::kBFloat16; }), "parameter_dtype BFloat16 on rank 1"},
      {with([](ShardOptions& o) { o.reduce_dtype = at::kFloat; }), "reduce_dtype Float on rank 1"},
      {with([](ShardOptions& o) { o.shard_frozen = true; }), "shard_frozen true on rank 1"},
      {with([](ShardOptions& o) { o.gathered_frozen_bytes = 7; }), "gathered_frozen_bytes 7 on rank 1"},
      {with([](ShardOptions& o) { o.uninitialized = true; }), "uninitialized true on rank 1"},
      {with([](ShardOptions& o) { o.offload_parameters = Offload::host; }), "offload_parameters host on rank 1"},
      {with([](ShardOptions& o) { o.offload_state = Offload::file; }), "offload_state file on rank 1"},
      {with([](ShardOptions& o) { o.weights_file = "weights"; }), "weights_file set on rank 1"}};
  run_ranks(2, [&](const comm::Group& group) {
    for (const auto& [options, difference] : others) {
      NetModel m(at::kDouble, group.rank());
      const std::vector<at::Tensor> values = m.net->values();
      const std::string message = message_of(
          [&] { zero_optimizer(adamw()(m.net->distinct()), m.model, group, group.rank() == 0 ? same : options); });
      EXPECT_THAT(message, HasSubstr("different options or versions for zero_optimizer (group world)"));
      EXPECT_THAT(message, HasSubstr(difference));
      expect_equal(m.net->values(), values);
    }
  });
}

// The second group has the same options on all of its ranks, and would otherwise wait for the first one.
TEST(ZeroMisuse, OtherOptionsInOneReplicaAreNamedInAll) {
  std::vector<std::string> messages(4);
  run_ranks(4, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"data", 2}, {"shard", 2}});
    const NetModel m;
    const ShardOptions options{
        .stage = 2, .bucket_bytes = world.rank() == 1 ? 1 : small_bucket, .replicas = mesh.group("data")};
    messages[static_cast<size_t>(world.rank())] =
        message_of([&] { zero_optimizer(adamw()(m.net->distinct()), m.model, mesh.group("shard"), options); });
    comm::barrier(world);  // no rank may end before the others have their messages
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, HasSubstr("different options or versions for zero_optimizer"));
    EXPECT_THAT(message, HasSubstr("bucket_bytes 1 on rank 1, and bucket_bytes 600 on rank 0"));
  }
}

TEST(ZeroMisuse, AnOptimizerThatOneRankCannotShardEndsAll) {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](const comm::Group& world) {
    const NetModel m, other;
    const std::vector<at::Tensor> parameters = (world.rank() == 1 ? other : m).net->distinct();
    messages[static_cast<size_t>(world.rank())] = message_of([&] {
      const OptimizerPtr optimizer = adamw()(parameters);
      zero_optimizer(optimizer, m.model, world);
    });
    messages[static_cast<size_t>(world.rank())] +=
        message_of([&] { zero_optimizer(world.rank() == 1 ? nullptr : adamw()(parameters), m.model, world); });
    comm::barrier(world);
  });
  EXPECT_THAT(messages[1], AllOf(HasSubstr("does not belong to model"), HasSubstr("expected an optimizer, got null")));
  EXPECT_THAT(messages[0], AllOf(HasSubstr("zero_optimizer: rank 1: "), HasSubstr("does not belong to model"),
                                 HasSubstr("expected an optimizer, got null")));
}

TEST(ZeroMisuse, SparseGradientsAreRefused) {
  NetModel m;
  const auto sharded = zero_optimizer(sgd()(m.net->distinct()), m.model, alone());
  const at::Tensor table = m.net->distinct()[4];
  const at::Tensor rows = at::embedding(table, at::arange(3), -1, false, /*sparse=*/true);
  EXPECT_THAT(message_of([&] { rows.sum().backward(); }), HasSubstr("\"tied.weight\" has a sparse gradient"));
}

TEST(ZeroMisuse, ABackwardThatFailedEndsTheRank) {
  NetModel m;
  const auto sharded = zero_optimizer(sgd()(m.net->distinct()), m.model, alone());
  const at::Tensor early = m.net->distinct()[0] * 2, late = m.net->distinct()[7] * 2;  // what came last goes back first
  early.register_hook([](const at::Tensor&) -> at::Tensor { TORCH_CHECK(false, "broken"); });
  EXPECT_ANY_THROW((early.sum() + late).sum().backward());
  EXPECT_THAT(message_of([&] { m.net->loss(0, 0, 1).backward(); }), HasSubstr("a backward pass failed"));
  EXPECT_THAT(message_of([&] { sharded->step(); }), HasSubstr("a backward pass failed"));
}

TEST(ZeroLayout, KeepsWhatTheCallerSees) {
  run_ranks(3, [](const comm::Group& group) {
    NetModel m;
    const std::vector<at::Tensor> before = m.net->values();
    std::vector<std::vector<int64_t>> strides;
    for (const at::Tensor& parameter : m.net->distinct()) strides.push_back(parameter.strides().vec());
    const auto sharded = zero_optimizer(sgd()(m.net->distinct()), m.model, group, {.bucket_bytes = small_bucket});
    expect_equal(m.net->values(), before);
    for (size_t i = 0; i < strides.size(); ++i) {
      const at::Tensor parameter = m.net->distinct()[i];
      EXPECT_EQ(parameter.strides().vec(), strides[i]);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.const_data_ptr()) % 64, 0);
    }
    EXPECT_TRUE(m.net->distinct()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  });
}

TEST(ZeroLayout, TakesTheWeightsOfRankZero) {
  run_ranks(2, [](const comm::Group& group) {
    NetModel m(at::kDouble, group.rank());
    zero_optimizer(sgd()(m.net->distinct()), m.model, group);
    std::vector<at::Tensor> expected = Net(at::kDouble, 0).values();
    expected.pop_back();  // frozen ones stay
    std::vector<at::Tensor> values = m.net->values();
    values.pop_back();
    expect_equal(values, expected);
  });
}

// Every cut of a channels-last tensor between two ranks, and of one whose dims stand backwards.
TEST(ZeroLayout, BoxesHoldWhatTheRunHolds) {
  for (const at::Tensor& tensor :
       {at::arange(3 * 2 * 2 * 2).view({3, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast),
        at::arange(24).view({4, 3, 2}).permute({2, 1, 0}), at::arange(6).view({2, 3})}) {
    Place place{.name = "p", .parameter = tensor, .order = {0, 2, 3, 1}};
    if (tensor.dim() == 3) place.order = {2, 1, 0};
    if (tensor.dim() == 2) place.order = {0, 1};
    for (int64_t begin = 0; begin < tensor.numel(); ++begin) {
      for (int64_t count = 1; begin + count <= tensor.numel(); ++count) {
        place.begin = begin;
        place.count = count;
        int64_t elements = 0;
        const at::Tensor run = place.run_of(tensor);
        for (const auto& [spec, part] : place.boxes(run)) {
          ASSERT_TRUE(at::equal(part, comm::part_of(tensor, spec))) << begin << " " << count;
          elements += spec.numel();
        }
        ASSERT_EQ(elements, count);
      }
    }
  }
}

TEST(Shards, AreGathered) {
  run_ranks(2, [](const comm::Group& group) {
    const at::Tensor whole = at::arange(12).view({3, 4});
    using comm::ShardSpec;
    const ShardSpec box = group.rank() == 0 ? ShardSpec{{3, 4}, {0, 0}, {3, 1}} : ShardSpec{{3, 4}, {0, 1}, {3, 3}};
    const ShardSpec run = ShardSpec::run({3, 4}, group.rank() * 5, group.rank() == 0 ? 5 : 7);
    std::vector<comm::Shard> shards = {{"box", comm::part_of(whole, box), box},
                                       {"number", at::scalar_tensor(7, at::kLong), ShardSpec::whole({})}};
    if (group.rank() == 1) shards.push_back({"flag", at::ones({3}, at::kBool), ShardSpec::whole({3})});
    shards.push_back({"run", comm::part_of(whole, run).to(at::kDouble), run});
    if (group.rank() == 0) shards.push_back({"run", at::zeros({0}, at::kDouble), ShardSpec::run({3, 4}, 5, 0)});
    const NamedTensors all = comm::gather(shards, group);
    ASSERT_EQ(all.size(), 4);
    EXPECT_TRUE(at::equal(all[0].second, whole));
    EXPECT_EQ(all[1].second.item<int64_t>(), 7);
    EXPECT_TRUE(at::equal(all[2].second, whole.to(at::kDouble)));
    EXPECT_EQ(all[3].first, "flag");
    shards.pop_back();
    EXPECT_THAT(message_of([&] { comm::gather(shards, group); }),
                HasSubstr("5 elements of \"run\", expected each of the 12"));
  });
}

TEST(Shards, AreGatheredInPlace) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      at::Tensor whole = at::zeros({2 * ranks});
      whole.narrow(0, 2 * group.rank(), 2).fill_(group.rank() + 1);
      comm::all_gather_in_place(whole, group);
      EXPECT_TRUE(at::equal(whole, at::arange(1, ranks + 1).repeat_interleave(2).to(at::kFloat)));
      if (ranks == 3) {
        EXPECT_THAT(message_of([&] { comm::all_gather_in_place(at::zeros({4}), group); }),
                    HasSubstr("multiple of the 3"));
      }
    });
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
