#include "bellows/optim/step_in_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <iostream>

#include "bellows/optim/adafactor.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using testing::HasSubstr;

/// Two layers of which one is used twice, and a weight that is frozen.
struct TiedNet : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(70, 70));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(70, 3));
  at::Tensor frozen = register_parameter("frozen", torch::ones({3}), /*requires_grad=*/false);
  at::Tensor loss(int step) {
    torch::manual_seed(static_cast<uint64_t>(40 + step));
    const at::Tensor x = torch::randn({9, 70}).to(frozen.scalar_type());
    return (last(first(first(x).tanh()).tanh()) * frozen).square().mean();
  }
};

std::shared_ptr<TiedNet> tied_net() {
  torch::manual_seed(77);
  return std::make_shared<TiedNet>();
}

}  // namespace

TEST(StepInBackward, IsStepForStepTheSame) {
  const auto check = [](auto make) {
    const auto plain = tied_net(), stepping = tied_net();
    const auto a = make(plain->parameters()), b = make(stepping->parameters());
    const auto handle = step_in_backward(*b);
    for (int step = 0; step < 4; ++step) {
      a->zero_grad();
      plain->loss(step).backward();
      a->step();
      stepping->loss(step).backward();
      for (const at::Tensor& p : stepping->parameters()) EXPECT_FALSE(p.grad().defined());
    }
    for (size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(plain->parameters()[i], stepping->parameters()[i])) << i;
    EXPECT_EQ(b->param_groups()[0].params().size(), plain->parameters().size());
  };
  check([](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01}); });
  check([](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01, .state_dtype = State::int8}); });
  check([](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); });
}

TEST(StepInBackward, EndsWithItsHandle) {
  const auto net = tied_net();
  SGD sgd(net->parameters(), {.lr = 0.1});
  step_in_backward(sgd).reset();
  const at::Tensor before = net->last->weight.detach().clone();
  net->loss(0).backward();
  EXPECT_TRUE(torch::equal(before, net->last->weight));
  EXPECT_GT(clip_grad_norm_(net->parameters(), 1).item<double>(), 0);
}

TEST(StepInBackward, RefusesWhatNeedsAllGradients) {
  const auto net = tied_net();
  AdamW adamw(net->parameters(), {});
  net->loss(0).backward();
  EXPECT_THAT(message_of([&] { step_in_backward(adamw); }), HasSubstr("already has a gradient"));
  adamw.zero_grad();
  const auto handle = step_in_backward(adamw);
  EXPECT_THAT(message_of([&] { step_in_backward(adamw); }), HasSubstr("hook"));
  net->loss(0).backward();
  EXPECT_THAT(message_of([&] { clip_grad_norm_(net->parameters(), 1); }), HasSubstr("the gradients no longer exist"));
  EXPECT_THAT(message_of([&] { clip_and_step(adamw, 1); }), HasSubstr("the gradients no longer exist"));
  EXPECT_THAT(message_of([&] { net->loss(0).backward({}, std::nullopt, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
  torch::optim::LBFGS lbfgs(tied_net()->parameters());
  EXPECT_THAT(message_of([&] { step_in_backward(lbfgs); }), HasSubstr("updates each parameter separately"));
}

// --- with state in a file

namespace {

/// On the disk, as /tmp may not be; goes with the object.
struct StateFolder {
  const std::string path = (std::filesystem::path(BELLOWS_BIN_DIR) / "optimizer_state_test").string();
  StateFolder() { std::filesystem::create_directory(path); }
  ~StateFolder() { std::filesystem::remove_all(path); }
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;
};

std::shared_ptr<TiedNet> tied_net_of(at::ScalarType type) {
  const auto net = tied_net();
  net->to(type);
  return net;
}

void expect_same_state(torch::optim::Optimizer& a, torch::optim::Optimizer& b) {
  const NamedTensors expected = state_dict(a), got = state_dict(b);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, expected[i].first);
    EXPECT_TRUE(torch::equal(got[i].second, expected[i].second)) << got[i].first;
  }
}

}  // namespace

// Through four steps, a state that is loaded in between, the end of the handle and a step in memory behind it.
TEST(OffloadedState, IsStepForStepTheSame) {
  const StateFolder folder;
  const auto check = [&](at::ScalarType type, auto make) {
    const auto plain = tied_net_of(type), stepping = tied_net_of(type);
    const auto a = make(plain->parameters()), b = make(stepping->parameters());
    const auto train_plain = [&](int step) {
      a->zero_grad();
      plain->loss(step).backward();
      a->step();
    };
    {
      // One parameter's state is in flight at a time, the first step's among them.
      const auto handle =
          step_in_backward(*b, {.offload_state = true, .folder = folder.path, .in_flight_bytes = 8 << 10});
      for (int step = 0; step < 4; ++step) train_plain(step), stepping->loss(step).backward();
      expect_same_state(*a, *b);
      NamedTensors state = state_dict(*a);
      for (auto& [name, tensor] : state) tensor = tensor.clone();
      load_state_dict(*a, state), load_state_dict(*b, state);
      for (int step = 4; step < 6; ++step) train_plain(step), stepping->loss(step).backward();
      EXPECT_TRUE(std::filesystem::is_empty(folder.path));  // nothing to leave behind, however the process ends
    }
    train_plain(6);
    b->zero_grad();
    stepping->loss(6).backward();
    b->step();
    expect_same_state(*a, *b);
    for (size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(plain->parameters()[i], stepping->parameters()[i])) << i;
  };
  check(at::kFloat, [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01}); });
  check(at::kFloat,
        [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.01, .state_dtype = State::int8}); });
  check(at::kBFloat16, [](auto p) {
    return std::make_unique<RMSprop>(p, RMSpropOptions{.lr = 0.01, .momentum = 0.9, .master_weights = true});
  });
  check(at::kFloat,
        [](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); });
}

TEST(OffloadedState, LeavesMemory) {
  const StateFolder folder;
  std::vector<at::Tensor> parameters;
  parameters.reserve(12);
  for (int i = 0; i < 12; ++i) parameters.push_back(torch::full({256, 1024}, 0.5).requires_grad_(true));
  AdamW adamw(parameters, {.lr = 0.01});
  const auto handle =
      step_in_backward(adamw, {.offload_state = true, .folder = folder.path, .in_flight_bytes = 4 << 20});
  EXPECT_EQ(handle->state_stats().file_bytes, 12 * 2 * (1 << 20));
  for (int step = 0; step < 3; ++step) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& p : parameters) sum = sum + p.square().sum();
    sum.backward();
  }
  handle->wait();
  // What is read ahead of the next pass, 4 MiB, and what the system has read beside it; in memory nothing can leave it.
  struct statfs disk {};
  ::statfs(folder.path.c_str(), &disk);
  const OffloadedStateStats stats = handle->state_stats();
  EXPECT_LE(stats.resident_bytes, disk.f_type == TMPFS_MAGIC ? stats.file_bytes : stats.file_bytes / 2);
  EXPECT_GT(state_dict(adamw)[1].second.abs().min().item<double>(), 0);  // and is there
}

TEST(OffloadedStateDeathTest, LeavesNothingBehindWhenItIsKilled) {
  const StateFolder folder;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the second process begins this test anew, with threads of its own
  const auto train = [&] {
    const auto net = tied_net();
    AdamW adamw(net->parameters(), {.lr = 0.01});
    const auto handle =
        step_in_backward(adamw, {.offload_state = true, .folder = folder.path, .in_flight_bytes = 8 << 10});
    for (int step = 0; step < 3; ++step) net->loss(step).backward();
    std::cerr << "state of " << handle->state_stats().file_bytes << " bytes in a file";
    std::raise(SIGKILL);
  };
  EXPECT_EXIT(train(), testing::KilledBySignal(SIGKILL), "state of [1-9][0-9]* bytes in a file");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
}

TEST(OffloadedState, SaysBeforehandWhatIsMissing) {
  const StateFolder folder;
  const auto message = [&](torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options) {
    return message_of([&] { step_in_backward(optimizer, options); });
  };
  const auto net = tied_net();
  AdamW adamw(net->parameters(), {});
  const StepInBackwardOptions here{.offload_state = true, .folder = folder.path};
  EXPECT_THAT(message(adamw, {.offload_state = true, .folder = folder.path + "/none"}),
              HasSubstr("offload_state: cannot create a file in"));
  EXPECT_THAT(message(adamw, {.offload_state = true, .in_flight_bytes = 0}),
              HasSubstr("in_flight_bytes above 0, got 0"));
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 10'000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string full = message(adamw, here);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(full, HasSubstr("the file needs 53248 bytes, but the file size limit of this process is 10000"));
  SGD without_momentum(net->parameters(), {.lr = 0.1});
  EXPECT_THAT(message(without_momentum, here), HasSubstr("has no state"));
  Adafactor adafactor(net->parameters(), {});
  EXPECT_THAT(message(adafactor, here), HasSubstr("Do not set offload_state for other optimizers"));
  net->loss(0).backward();  // no hook has stayed
  EXPECT_TRUE(net->last->weight.grad().defined());
}

}  // namespace bellows::optim
