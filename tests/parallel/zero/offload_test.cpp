#include "tests/parallel/zero/offload.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <tuple>

#include "bellows/amp/grad_scaler.h"
#include "bellows/comm/mesh.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/optim/clip.h"
#include "tests/parallel/zero/blocks.h"
#include "tests/support/errors.h"

// Shards and optimizer state in files: the results are those of a run in memory, bit by bit.
namespace bellows::parallel::testing::zero {
namespace {

using optim::Impl;
using ::testing::HasSubstr;

constexpr int64_t offloaded_steps = 20;

/// How a run with a Net differs from the plain one.
struct OffloadWay {
  MakeOptimizer make = adamw();
  ShardOptions options = {.stage = 3, .bucket_bytes = small_bucket};
  int passes = 1;  ///< backward passes per step
  bool clips = false, scales = false;
  at::ScalarType dtype = at::kDouble;
};

RunResult train_net(const OffloadWay& way, const ShardOptions& options, const comm::Group& group) {
  NetModel m(way.dtype);
  const auto optimizer = zero_optimizer(way.make(m.net->distinct()), m.model, group, options);
  amp::GradScaler scaler({.init_scale = 1024});
  for (int64_t step = 0; step < offloaded_steps; ++step) {
    optimizer->zero_grad();
    for (int pass = 0; pass < way.passes; ++pass) {
      at::Tensor loss = m.net->loss(step * way.passes + pass, group.rank(), group.size());
      const double poison = way.scales && step == 3 && group.rank() == 1 ? INFINITY : 0;
      if (poison != 0) loss = loss + m.net->named_parameters()[7].second.sum() * poison;
      (way.scales ? scaler.scale(loss) : loss).backward();
      if (options.stage == 1) average_gradients(*m.net, group);
    }
    if (way.clips) optim::clip_grad_norm_(m.net->distinct(), 0.01);
    if (way.scales) {
      if (step % 2 == 0) scaler.unscale_(*optimizer);
      scaler.step(*optimizer);
      scaler.update();
    } else {
      optimizer->step();
    }
  }
  const bool files = options.offload_parameters == Offload::file || options.offload_state == Offload::file;
  EXPECT_EQ(optimizer->offloaded_bytes().file_bytes > 0, files);
  return {m.net->values(), optim::state_dict(*optimizer)};
}

void expect_unchanged(const OffloadWay& way, int ranks) {
  const TemporaryFolder folder;
  const RunResult plain = result_of(ranks, [&](const auto& group) { return train_net(way, way.options, group); });
  const RunResult offloaded =
      result_of(ranks, [&](const auto& group) { return train_net(way, in_files(way.options, folder.path()), group); });
  expect_same_run(offloaded, plain);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

using OffloadCase = std::tuple<int, int>;  ///< number of ranks, stage
class ZeroOffload : public ::testing::TestWithParam<OffloadCase> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  ShardOptions options() const { return {.stage = std::get<1>(GetParam()), .bucket_bytes = small_bucket}; }
};

TEST_P(ZeroOffload, IsBitIdentical) {
  for (const MakeOptimizer& make : {adamw(), sgd(Impl::loop), rmsprop(Impl::foreach)}) {
    expect_unchanged({.make = make, .options = options()}, ranks());
  }
}

TEST_P(ZeroOffload, AccumulatesClipsAndScales) {
  expect_unchanged({.options = options(), .passes = 3, .clips = true}, ranks());
  if (options().stage > 1) expect_unchanged({.options = options(), .scales = true, .dtype = at::kFloat}, ranks());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroOffload,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(1, 2, 3)));

TEST(ZeroOffloadPlaces, EachKindAlone) {
  const TemporaryFolder folder;
  const OffloadWay way;
  const RunResult plain = result_of(2, [&](const auto& group) { return train_net(way, way.options, group); });
  using Kind = std::pair<Offload, Offload>;
  for (const auto& [parameters, state] : {Kind{Offload::file, Offload::none}, Kind{Offload::none, Offload::file},
                                          Kind{Offload::host, Offload::host}, Kind{Offload::host, Offload::file}}) {
    ShardOptions options = way.options;
    options.offload_parameters = parameters;
    options.offload_state = state;
    options.offload_folder = folder.path();
    expect_same_run(result_of(2, [&](const auto& group) { return train_net(way, options, group); }), plain);
  }
}

TEST(ZeroOffloadPlaces, OneRankCanOffload) {
  const TemporaryFolder folder;
  const OffloadWay way;
  const RunResult plain = result_of(1, [&](const auto& group) { return train_net(way, way.options, group); });
  expect_same_run(
      result_of(1, [&](const auto& group) { return train_net(way, in_files(way.options, folder.path()), group); }),
      plain);
}

TEST(ZeroOffloadPlaces, HybridMeshes) {
  for (const bool divides : {false, true}) {
    const TemporaryFolder folder;
    const auto train = [&](const comm::Group& world, bool offloads) {
      const comm::Mesh mesh(world, {{"data", 2}, {"shard", 2}});
      ShardOptions options{.stage = 3,
                           .bucket_bytes = small_bucket,
                           .replicas = mesh.group("data"),
                           .shard_state_over_replicas = divides};
      if (offloads) options = in_files(options, folder.path());
      NetModel m;
      const auto optimizer = zero_optimizer(adamw()(m.net->distinct()), m.model, mesh.group("shard"), options);
      for (int64_t step = 0; step < offloaded_steps; ++step) {
        optimizer->zero_grad();
        m.net->loss(step, world.rank(), world.size()).backward();
        optimizer->step();
      }
      return RunResult{m.net->values(), optim::state_dict(*optimizer)};
    };
    const RunResult plain = result_of(4, [&](const auto& world) { return train(world, false); });
    expect_same_run(result_of(4, [&](const auto& world) { return train(world, true); }), plain);
  }
}

/// Layers of bf16 or fp32, of which the first is frozen.
RunResult train_layers(const comm::Group& group, const ShardOptions& options, const optim::AdamWOptions& adam,
                       at::ScalarType dtype) {
  torch::nn::Sequential net(torch::nn::Linear(24, 48), torch::nn::Tanh(), torch::nn::Linear(48, 40), torch::nn::Tanh(),
                            torch::nn::Linear(40, 3));
  net->to(dtype);
  double seed = 0;
  std::vector<at::Tensor> trained;
  for (const at::Tensor& p : net->parameters()) {
    const c10::NoGradGuard no_grad;
    p.copy_(made_up(p.sizes(), dtype, ++seed));
    if (seed <= 2) {
      p.requires_grad_(false);
    } else {
      trained.push_back(p);
    }
  }
  const auto optimizer = zero_optimizer(std::make_shared<optim::AdamW>(trained, adam), Model::of(net), group, options);
  const at::ScalarType used = options.parameter_dtype.value_or(dtype);
  for (int64_t step = 0; step < offloaded_steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor x = made_up({12, 24}, used, static_cast<double>(step)).chunk(group.size())[group.rank()];
    net->forward(x).square().mean().backward();
    optimizer->step();
  }
  RunResult result{{}, optim::state_dict(*optimizer)};
  for (const at::Tensor& p : net->parameters()) result.values.push_back(p.detach().clone());
  return result;
}

void expect_layers_unchanged(ShardOptions options, const optim::AdamWOptions& adam, at::ScalarType dtype) {
  options.stage = 3;
  options.bucket_bytes = 4096;
  const TemporaryFolder folder;
  const auto train = [&](const ShardOptions& how) {
    return result_of(3, [&](const auto& group) { return train_layers(group, how, adam, dtype); });
  };
  expect_same_run(train(in_files(options, folder.path())), train(options));
}

TEST(ZeroOffloadKinds, LowPrecisionAndLowBits) {
  expect_layers_unchanged({}, {.lr = 0.01, .master_weights = true}, at::kBFloat16);
  expect_layers_unchanged({}, {.lr = 0.01, .state_dtype = optim::State::int8, .min_8bit_size = 0}, at::kFloat);
  expect_layers_unchanged(
      {}, {.lr = 0.01, .master_weights = true, .state_dtype = optim::State::int4, .min_8bit_size = 0}, at::kBFloat16);
  expect_layers_unchanged({.parameter_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .shard_frozen = true},
                          {.lr = 0.01}, at::kFloat);
}

TEST(ZeroOffloadKinds, FrozenShards) {
  expect_layers_unchanged({.shard_frozen = true}, {.lr = 0.01}, at::kFloat);
  expect_layers_unchanged({.reshard_after_forward = false, .shard_frozen = true}, {.lr = 0.01}, at::kFloat);
}

TEST(ZeroOffloadKinds, WeightsFromAFile) {
  const TemporaryFolder folder;
  io::save_safetensors(folder / "net.safetensors", NetModel(at::kDouble, /*seed=*/3).model.named_parameters());
  std::filesystem::create_directory(folder / "scratch");
  const auto train = [&](const comm::Group& group, bool offloads) {
    ShardOptions options{.stage = 3, .bucket_bytes = small_bucket, .weights_file = folder / "net.safetensors"};
    return train_net({}, offloads ? in_files(options, folder / "scratch") : options, group);
  };
  const RunResult plain = result_of(3, [&](const auto& group) { return train(group, false); });
  expect_same_run(result_of(3, [&](const auto& group) { return train(group, true); }), plain);
}

// The checkpoint of four ranks with files loads on other numbers of ranks, with and without files, and back.
TEST(ZeroOffloadState, LoadsOnOtherNumbersOfRanks) {
  const TemporaryFolder folder;
  const ShardOptions plain{.stage = 3, .bucket_bytes = small_bucket};
  const ShardOptions files = in_files(plain, folder.path());
  const auto train = [&](const comm::Group& group, const ShardOptions& options, const RunResult& from, int64_t first,
                         int64_t last) {
    NetModel m;
    const auto optimizer = zero_optimizer(adamw()(m.net->distinct()), m.model, group, options);
    if (!from.values.empty()) {
      optimizer->with_full_parameters([&] {
        const c10::NoGradGuard no_grad;
        for (size_t i = 0; i < from.values.size(); ++i) m.net->distinct()[i].copy_(from.values[i]);
      });
      optim::load_state_dict(*optimizer, from.state);
    }
    for (int64_t step = first; step < last; ++step) {
      optimizer->zero_grad();
      m.net->loss(step, group.rank(), group.size()).backward();
      optimizer->step();
    }
    return RunResult{m.net->values(), optim::state_dict(*optimizer)};
  };
  const RunResult saved = result_of(4, [&](const auto& group) { return train(group, files, {}, 0, 5); });
  for (const int ranks : {2, 3}) {
    const RunResult in_memory = result_of(ranks, [&](const auto& group) { return train(group, plain, saved, 5, 10); });
    expect_same_run(result_of(ranks, [&](const auto& group) { return train(group, files, saved, 5, 10); }), in_memory);
  }
}

TEST(ZeroOffloadState, TwoRunsShareAFolder) {
  const TemporaryFolder folder;
  const OffloadWay way;
  const RunResult plain = result_of(2, [&](const auto& group) { return train_net(way, way.options, group); });
  std::vector<RunResult> results(2);
  std::vector<std::thread> runs;
  for (RunResult& result : results) {
    runs.emplace_back([&] {
      result =
          result_of(2, [&](const auto& group) { return train_net(way, in_files(way.options, folder.path()), group); });
    });
  }
  for (std::thread& run : runs) run.join();
  for (const RunResult& result : results) expect_same_run(result, plain);
}

std::string message_of_rank(int failing, const std::function<void(ShardOptions&)>& change, int stage = 3) {
  std::string message;
  std::mutex mutex;
  const TemporaryFolder folder;
  run_ranks(2, [&](const comm::Group& group) {
    NetModel m;
    ShardOptions options = in_files({.stage = stage, .bucket_bytes = small_bucket}, folder.path());
    if (group.rank() == failing || failing < 0) change(options);
    const std::string mine = message_of([&] { zero_optimizer(adamw()(m.net->distinct()), m.model, group, options); });
    const std::scoped_lock lock(mutex);
    EXPECT_NE(mine, "");
    if (group.rank() == 0) message = mine;
  });
  return message;
}

TEST(ZeroOffloadErrors, EveryRankReportsTheFolderOfOne) {
  const auto missing = [](ShardOptions& options) { options.offload_folder += "/none"; };
  EXPECT_THAT(message_of_rank(0, missing), HasSubstr("offload_parameters: cannot create a file in"));
  EXPECT_THAT(message_of_rank(1, missing), HasSubstr("rank 1: offload_parameters: cannot create a file in"));
  const auto state_only = [](ShardOptions& options) {
    options.offload_parameters = Offload::none;
    options.offload_folder = "/proc";
  };
  EXPECT_THAT(message_of_rank(-1, state_only), HasSubstr("offload_state: cannot create a file in /proc"));
  EXPECT_THAT(message_of_rank(-1, state_only, 1), HasSubstr("offload_state: cannot create a file in /proc"));
}

TEST(ZeroOffloadErrors, TooLittleSpaceIsFoundAtTheStart) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 5000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string full = message_of_rank(-1, [](ShardOptions&) {});
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(full, HasSubstr("but the file size limit of this process is 5000"));
  EXPECT_THAT(full, HasSubstr("use more ranks"));
}

// The optimizer has state, but its options need none, so its state cannot be offloaded.
TEST(ZeroOffloadErrors, ModelAndOptimizerKeepTheirValues) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const comm::Group& group) {
    NetModel m;
    const OptimizerPtr optimizer = sgd(Impl::loop)(m.net->distinct());
    m.net->loss(0, 0, 1).backward();
    optimizer->step();
    optimizer->zero_grad();
    for (auto& parameters : optimizer->param_groups())
      static_cast<torch::optim::SGDOptions&>(parameters.options()).momentum(0);
    const std::vector<at::Tensor> values = m.net->values();
    NamedTensors state = optim::state_dict(*optimizer);
    for (auto& [name, tensor] : state) tensor = tensor.clone();
    const ShardOptions plain{.stage = 3, .bucket_bytes = small_bucket};
    EXPECT_THAT(message_of([&] { zero_optimizer(optimizer, m.model, group, in_files(plain, folder.path())); }),
                HasSubstr("this optimizer has no state"));
    expect_equal(m.net->values(), values);
    expect_equal(optim::state_dict(*optimizer), state);
    const auto sharded = zero_optimizer(optimizer, m.model, group, plain);
    expect_equal(m.net->values(), values);
    m.net->loss(1, group.rank(), group.size()).backward();
    sharded->step();
    EXPECT_FALSE(at::equal(m.net->values().front(), values.front()));
  });
}

TEST(ZeroOffloadErrors, OptionsThatDoNotFit) {
  EXPECT_THAT(message_of_rank(-1, [](ShardOptions& o) { o.stage = 2, o.offload_parameters = Offload::host; }),
              HasSubstr("offload_parameters needs stage 3, got stage 2"));
  EXPECT_THAT(message_of_rank(-1, [](ShardOptions& o) { o.offload_window_bytes = 0; }),
              HasSubstr("expected offload_window_bytes above 0, got 0"));
  const TemporaryFolder folder;
  run_ranks(2, [&](const comm::Group& group) {
    NetModel m;
    const auto plain = std::make_shared<optim::SGD>(m.net->distinct(), optim::SGDOptions{.lr = 0.1});
    EXPECT_THAT(message_of([&] { zero_optimizer(plain, m.model, group, in_files({.stage = 3}, folder.path())); }),
                HasSubstr("this optimizer has no state"));
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
