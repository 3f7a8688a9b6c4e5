#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "../parallel/ranks.h"
#include "bellows/comm/collectives.h"
#include "bellows/comm/connections.h"
#include "bellows/comm/group_impl.h"
#include "tests/support/errors.h"

namespace bellows::comm {

namespace {

using parallel::testing::run_ranks;
using ::testing::HasSubstr;

/// The ranks of these tests exchange tensors over sockets.
class OverSockets {
 public:
  OverSockets() { setenv("BELLOWS_SHARED_MEMORY", "0", 1); }
  ~OverSockets() { unsetenv("BELLOWS_SHARED_MEMORY"); }
};

int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:bellows") != std::string::npos ? 1 : 0;
  return count;
}

/// Values of a rank that round in every sum.
at::Tensor values_of(int rank, int64_t count, at::ScalarType type) {
  const at::Tensor numbers = at::arange(count, at::kDouble);
  return at::isFloatingType(type) ? ((numbers * 0.37 + rank).sin() * 3 + 0.1).to(type)
                                  : (numbers.remainder(11) + rank).to(type);
}

at::Tensor in_pairs(std::vector<at::Tensor> parts, const std::function<at::Tensor(at::Tensor, at::Tensor)>& combine) {
  while (parts.size() > 1) {
    std::vector<at::Tensor> next;
    for (size_t i = 0; i < parts.size(); i += 2)
      next.push_back(i + 1 < parts.size() ? combine(parts[i], parts[i + 1]) : parts[i]);
    parts = next;
  }
  return parts.front();
}

constexpr int64_t several_chunks = 700'001;

TEST(SharedMemory, RanksOfOneMachineUseIt) {
  run_ranks(2, [](const Group& group) {
    EXPECT_GE(shared_mappings(), 1);
    all_reduce(at::ones({3}), group);
    barrier(group);
  });
  EXPECT_EQ(shared_mappings(), 0) << "the memory outlives the groups";
  const OverSockets over_sockets;
  run_ranks(2, [](const Group&) { EXPECT_EQ(shared_mappings(), 0); });
}

TEST(SharedMemory, SumsInPairsOfRanks) {
  for (const int ranks : {2, 3, 4, 7}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
      run_ranks(ranks, [&](const Group& group) {
        for (const int64_t count : {int64_t{1}, int64_t{1000}, several_chunks}) {
          std::vector<at::Tensor> parts;
          for (int rank = 0; rank < ranks; ++rank) parts.push_back(values_of(rank, count, type));
          const at::Tensor sum = in_pairs(parts, [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
          const at::Tensor own = parts[static_cast<size_t>(group.rank())];
          EXPECT_TRUE(all_reduce(own.clone(), group).equal(sum)) << ranks << " ranks, " << type << " " << count;
        }
      });
    }
  }
}

TEST(SharedMemory, GivesTheResultsOfSockets) {
  const auto results = [](int ranks) {
    std::vector<at::Tensor> all(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](const Group& group) {
      const at::Tensor own = values_of(group.rank(), several_chunks * ranks, at::kFloat);
      all[static_cast<size_t>(group.rank())] = at::cat(
          {reduce_scatter(own, group, Reduce::mean), broadcast(own.clone(), ranks - 1, group),
           all_gather(own.narrow(0, 0, several_chunks), group).flatten(), all_reduce(own.clone(), group, Reduce::max)});
    });
    return all;
  };
  for (const int ranks : {2, 4}) {
    const auto shared = results(ranks);
    const OverSockets over_sockets;
    const auto sockets = results(ranks);
    for (size_t rank = 0; rank < shared.size(); ++rank) EXPECT_TRUE(shared[rank].equal(sockets[rank]));
  }
}

TEST(SharedMemory, RunsManyCallsInOrder) {
  run_ranks(3, [](const Group& group) {
    std::mt19937 random(7);  // the same on all ranks
    std::vector<std::pair<Pending, double>> calls;
    for (int i = 0; i < 300; ++i) {
      const auto count = static_cast<int64_t>(1 + random() % (i % 10 == 0 ? 600'000 : 300));
      const auto kind = random() % 5;
      const auto root = static_cast<int>(random() % 3);
      if (kind == 0) calls.emplace_back(all_reduce_async(at::full({count}, group.rank() + i), group), 3 * i + 3);
      if (kind == 1) calls.emplace_back(broadcast_async(at::full({count}, group.rank() + i), root, group), i + root);
      if (kind == 2) calls.emplace_back(all_gather_async(at::full({count}, i), group), i);
      if (kind == 3) barrier(group);  // over sockets
      if (kind == 4)
        calls.emplace_back(reduce_scatter_async(at::full({3 * count}, group.rank() + i), group, Reduce::max), i + 2);
    }
    for (auto& [call, expected] : calls) EXPECT_TRUE(call.wait().eq(expected).all().item<bool>());
  });
}

TEST(SharedMemory, ChecksThatRanksMakeTheSameCall) {
  const auto different = [](const std::function<void(const Group&)>& first,
                            const std::function<void(const Group&)>& others) {
    std::vector<std::string> errors(3);
    run_ranks(3, [&](const Group& group) {
      errors[static_cast<size_t>(group.rank())] = message_of([&] { (group.rank() == 0 ? first : others)(group); });
    });
    return errors;
  };
  for (const std::string& error : different([](const Group& group) { all_reduce(at::ones({5}), group); },
                                            [](const Group& group) { all_reduce(at::ones({6}), group); }))
    EXPECT_THAT(error, HasSubstr("the ranks called different collectives: #1 all_reduce Float["));
  for (const std::string& error : different([](const Group& group) { all_reduce(at::ones({5}), group); },
                                            [](const Group& group) { broadcast(at::ones({5}), 0, group); }))
    EXPECT_THAT(error, HasSubstr("called different collectives"));
}

TEST(SharedMemory, ARankThatLeavesEndsTheWaitsOfTheOthers) {
  std::vector<std::string> errors(3);
  run_ranks(3, [&](const Group& group) {
    const Group ring = duplicate(group, "ring");
    if (group.rank() == 1) return;  // destroys the groups
    errors[static_cast<size_t>(group.rank())] = message_of([&] { all_reduce(at::ones({several_chunks}), ring); });
  });
  EXPECT_THAT(errors[0], HasSubstr("all_reduce Float[700001] failed on rank 0"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1"));
}

TEST(SharedMemory, ClosingEndsTheOwnWait) {
  run_ranks(2, [&](const Group& world) {
    GroupParts parts = *world.state();
    parts.name = "elastic";
    parts.connections = std::make_shared<Connections>(0);
    const Group group = make_group(parts, *world.state()->store, world.state()->watchdog);
    if (world.rank() == 0) {
      Pending pending = all_reduce_async(at::ones({2}), group);  // the other rank never calls it
      parts.connections->shut_down();
      EXPECT_THAT(message_of([&] { pending.wait(); }), HasSubstr("closed"));
    }
    barrier(world);
  });
}

TEST(SharedMemory, ChecksSizes) {
  run_ranks(2, [&](const Group& group) {
    c10d::ProcessGroup& ranks = *group.state()->process_group;
    at::Tensor four = at::ones({4}), three = at::ones({3});
    EXPECT_THAT(message_of([&] { ranks._allgather_base(four, three)->wait(); }),
                HasSubstr("all_gather: expected a tensor of 2 times 3 elements"));
    EXPECT_THAT(message_of([&] { ranks._reduce_scatter_base(three, four)->wait(); }),
                HasSubstr("reduce_scatter: expected a tensor of 2 times 3 elements"));
    EXPECT_TRUE(all_reduce(at::ones({3}), group).eq(2).all().item<bool>()) << "the group is still usable";
  });
}

TEST(SharedMemory, ClosedConnectionsFailAtOnceOnAllRanks) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](const Group& world) {
    GroupParts parts = *world.state();
    parts.name = "elastic";
    parts.connections = std::make_shared<Connections>(0);
    const Group group = make_group(parts, *world.state()->store, world.state()->watchdog);
    if (world.rank() == 1) return parts.connections->shut_down();
    errors[0] = message_of([&] { all_reduce(at::ones({2}), group); });
    errors[1] = message_of([&] { all_reduce(at::ones({2}), group); });
  });
  EXPECT_THAT(errors[0], HasSubstr("closed"));
  EXPECT_THAT(errors[1], HasSubstr("closed"));
}

}  // namespace

}  // namespace bellows::comm
