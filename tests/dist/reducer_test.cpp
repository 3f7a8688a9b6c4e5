#include "tests/tap/support.h"
#include "two_ranks.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace bellows::tap::testing {
namespace {

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const bellows::testing::RankPlace& place, const std::string& name) {
  auto store = c10::make_intrusive<c10d::FileStore>(place.folder + "/" + name, place.world);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank, place.world, options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, place.rank, place.world);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  group->setGroupName(name);
  return group;
}

torch::nn::Sequential make_net() {
  torch::manual_seed(11);
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
  net->to(at::kDouble);
  return net;
}

at::Tensor shard(int rank) {
  return torch::linspace(-1, 2, 24, at::kDouble).view({4, 6}) * (rank + 1);
}

/// Two steps through the Reducer (its buckets are rebuilt after the first); gradients of the second.
std::vector<at::Tensor> reduced_gradients(const bellows::testing::RankPlace& place, const std::string& name) {
  auto net = make_net();
  const auto params = net->parameters();
  auto group = make_group(place, name);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(params, {256, 1024}));
  auto reducer = std::make_shared<c10d::Reducer>(params, buckets, group, std::vector<bool>(params.size(), false), 1024,
                                                 false, false, std::unordered_map<size_t, std::string>{}, 256, false,
                                                 false, std::vector<int64_t>{});
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    reducer->prepare_for_forward();
    reducer->rebuild_buckets();
    const auto loss = net->forward(shard(place.rank)).pow(2).mean();
    reducer->prepare_for_backward({loss});
    loss.backward();
  }
  std::vector<at::Tensor> result;
  for (const auto& p : params) result.push_back(p.grad().clone());
  return result;
}

/// The mean over the ranks, on one process.
std::vector<at::Tensor> expected_gradients(int world) {
  auto net = make_net();
  for (int rank = 0; rank < world; ++rank) (net->forward(shard(rank)).pow(2).mean() / world).backward();
  std::vector<at::Tensor> result;
  for (const auto& p : net->parameters()) result.push_back(p.grad());
  return result;
}

void run_one_rank(const bellows::testing::RankPlace& place) {
  const auto plain = reduced_gradients(place, "plain");
  const auto expected = expected_gradients(place.world);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(plain[i], expected[i], 1e-12, 1e-14));
  auto observer = std::make_shared<NotingObserver>(ObserverNeeds{.backward_nodes = true, .inputs = true});
  auto check = std::make_shared<NotingCheck>();
  auto tap = std::make_shared<NotingTap>();
  auto saved = std::make_shared<CopyingTap>();
  {
    ObserverGuard a(observer);
    OpCheckGuard b(check);
    OpTapGuard c(tap);
    SavedTensorGuard d(saved);
    EXPECT_TRUE(same_bits(plain, reduced_gradients(place, "tapped")));
    a.check();
  }
  EXPECT_TRUE(tap->has("c10d::allreduce_")) << ::testing::PrintToString(tap->names);
  EXPECT_TRUE(observer->has("c10d::allreduce_"));
  EXPECT_TRUE(check->has("c10d::allreduce_"));
  EXPECT_GT(saved->size(), 0u);
  const size_t seen = tap->size();
  EXPECT_TRUE(same_bits(plain, reduced_gradients(place, "after")));
  EXPECT_EQ(tap->size(), seen);
}

TEST(Reducer, TwoRanksUnderAllTaps) {
  if (const auto* place = bellows::testing::rank_place()) return run_one_rank(*place);
  EXPECT_EQ(bellows::testing::run_ranks(2, 120), "");
}

/// The harness itself: a rank that never ends is killed, and the test says so.
TEST(Reducer, ARankThatHangsIsKilled) {
  if (const auto* place = bellows::testing::rank_place()) {
    while (place->rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    return;
  }
  EXPECT_THAT(bellows::testing::run_ranks(2, 5), ::testing::HasSubstr("rank 1 was killed after the limit"));
}

}  // namespace
}  // namespace bellows::tap::testing
