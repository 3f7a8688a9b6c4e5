#include "bellows/recompute/partition.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "bellows/amp/autocast.h"
#include "bellows/tap/allocator.h"
#include "tests/recompute/partition_support.h"

namespace bellows::recompute::testing {

namespace {

/// Divides small tensors, too.
PartitionOptions all_sizes() {
  return {.min_bytes = 1};
}

/// The bytes of one rank's slice.
int64_t slice_bytes(int64_t elements, int64_t itemsize, int ranks) {
  return (elements + ranks - 1) / ranks * itemsize;
}

}  // namespace

class Partition : public ::testing::TestWithParam<int> {};

TEST_P(Partition, GradientsAreTheSameBitForBit) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const PartitionedNet net;
    const PartitionGuard guard(group, all_sizes());
    for (int64_t step = 0; step < 3; ++step) {
      const PairCall plain = [](const PairLayer& block, const at::Tensor& x, const at::Tensor& rows) {
        return block(x, rows);
      };
      EXPECT_EQ(first_difference(net.gradients(step, plain), net.gradients(step)), -1) << step;
    }
    EXPECT_GE(guard.stats().gathered, group.size() > 1 ? 3 * PartitionedNet::blocks : 0);
  });
}

TEST_P(Partition, KeepsAndSendsWhatTheFormulasSay) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const int n = group.size();
    const PartitionedNet net;
    const PartitionGuard guard(group, all_sizes());
    const int64_t before = comm::traffic(group)["all_gather"].bytes;
    const at::Tensor loss = net.loss(0);
    // Inputs: x of five blocks, a slice of it, and the integers, which all blocks share. Block 0's x is the same
    // storage as nothing else.
    constexpr int64_t rows = PartitionedNet::rows, x = rows * 5 * PartitionedNet::columns, slice = rows * 5 * 11;
    const int64_t inputs = 5 * slice_bytes(x, 4, n) + slice_bytes(slice, 4, n), order = slice_bytes(rows, 8, n);
    const PartitionStats saved = guard.stats();
    if (n == 1) {
      EXPECT_EQ(saved.tensors, 0);
      return;
    }
    EXPECT_EQ(saved.tensors, 7);
    EXPECT_EQ(saved.bytes, 4 * (5 * x + slice) + 8 * rows);
    EXPECT_EQ(saved.kept_bytes, inputs + order);
    EXPECT_NEAR(static_cast<double>(saved.kept_bytes) * n, static_cast<double>(saved.bytes),
                0.05 * static_cast<double>(saved.bytes));
    loss.backward();
    // Each call gathers its own inputs.
    const PartitionStats read = guard.stats();
    EXPECT_EQ(read.gathered, 12);
    EXPECT_EQ(read.sent_bytes, (n - 1) * (inputs + 6 * order + 12 * 128));
    const int64_t counted = comm::traffic(group)["all_gather"].bytes - before;
    EXPECT_EQ(counted * (n - 1), read.sent_bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Partition, ::testing::Values(1, 2, 3, 4),
                         [](const auto& ranks) { return c10::str("On", ranks.param); });

// Counts the memory of all ranks, which are threads of one process.
TEST(PartitionMemory, IsDividedByTheNumberOfRanks) {
  tap::install_cpu_allocator();
  constexpr int ranks = 4, blocks = 8;
  constexpr int64_t bytes = 4 * 512 * 1024;
  std::vector<int64_t> held(2);
  run_ranks(ranks, [&](const comm::Group& group) {
    for (const bool divided : {false, true}) {
      const at::Tensor w = torch::full({}, 0.5, torch::requires_grad());
      std::optional<PartitionGuard> guard;
      if (divided) guard.emplace(group);
      comm::barrier(group);
      const int64_t before = tap::cpu_allocation_counters().current_bytes;
      comm::barrier(group);
      at::Tensor x = formula({512, 1024}, 0) * w;
      for (int i = 0; i < blocks; ++i) x = checkpoint([w](const at::Tensor& y) { return (y * w).sin(); }, x);
      const at::Tensor loss = x.sum();
      x.reset();
      comm::barrier(group);
      if (group.rank() == 0) held[divided] = tap::cpu_allocation_counters().current_bytes - before;
      comm::barrier(group);
      loss.backward();
    }
  });
  // The product with w also saves its other factor, outside of the checkpointed calls.
  const int64_t outside = ranks * bytes;
  EXPECT_NEAR(static_cast<double>(held[0] - outside), ranks * blocks * bytes, 0.05 * ranks * blocks * bytes);
  EXPECT_NEAR(static_cast<double>(held[1] - outside), blocks * bytes, 0.05 * blocks * bytes);
}

TEST(PartitionUse, RetainedGraphsAndAccumulation) {
  run_ranks(3, [](const comm::Group& group) {
    const PartitionedNet net;
    const auto gradients = [&] {
      const at::Tensor first = net.loss(1), second = net.loss(2);
      first.backward({}, /*retain_graph=*/true);  // in another order than that of the forward passes
      second.backward();
      first.backward();
      return net.take_gradients();
    };
    const auto expected = gradients();
    const PartitionGuard guard(group, all_sizes());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(first_difference(expected, gradients()), -1) << i;
    EXPECT_GE(guard.stats().gathered, 3 * 36);
  });
}

TEST(PartitionUse, BackwardAfterTheGuard) {
  run_ranks(2, [](const comm::Group& group) {
    const PartitionedNet net;
    const auto expected = net.gradients(0);
    at::Tensor loss;
    {
      const PartitionGuard guard(group, all_sizes());
      loss = net.loss(0);
    }
    loss.backward();
    EXPECT_EQ(first_difference(expected, net.take_gradients()), -1);
  });
}

TEST(PartitionUse, NestedCalls) {
  run_ranks(2, [](const comm::Group& group) {
    const PartitionedNet net;
    const PairCall nested = [](const PairLayer& block, const at::Tensor& x, const at::Tensor& rows) {
      const PairLayer outer = [block](const at::Tensor& y, const at::Tensor& of) {
        return checkpoint(block, y, of) + checkpoint(block, y.cos(), of);
      };
      return checkpoint(outer, x, rows);
    };
    const auto expected = net.gradients(3, nested);
    const PartitionGuard guard(group, all_sizes());
    for (int i = 0; i < 2; ++i) EXPECT_EQ(first_difference(expected, net.gradients(3, nested)), -1) << i;
    EXPECT_EQ(guard.stats().tensors, 2 * 7) << "the inputs of the outer calls";
  });
}

TEST(PartitionUse, Autocast) {
  run_ranks(2, [](const comm::Group& group) {
    const PartitionedNet net;
    const auto gradients = [&] {
      at::Tensor loss;
      {
        const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
        loss = net.loss(3);
      }
      loss.backward();
      return net.take_gradients();
    };
    const auto expected = gradients();
    const PartitionGuard guard(group, all_sizes());
    for (int i = 0; i < 2; ++i) EXPECT_EQ(first_difference(expected, gradients()), -1) << i;
  });
}

TEST(PartitionUse, KeptOutputsAreDividedToo) {
  run_ranks(2, [](const comm::Group& group) {
    const PartitionedNet net;
    const CheckpointRule products = [](const CheckpointOp& op) {
      return op.name == "aten::mm" || op.name == "aten::bmm" ? CheckpointPolicy::must_save
                                                             : CheckpointPolicy::prefer_recompute;
    };
    for (const CheckpointOptions& options :
         {CheckpointOptions{.policy = products}, CheckpointOptions{.policy = save_products},
          CheckpointOptions{.budget = 0.5}, CheckpointOptions{.budget = 1.0}}) {
      const PairCall kept = [&](const PairLayer& block, const at::Tensor& x, const at::Tensor& rows) {
        return checkpoint(options, block, x, rows);
      };
      const auto expected = net.gradients(5, kept);
      int64_t tensors[2];
      for (const bool outputs : {false, true}) {
        const PartitionGuard guard(group, {.min_bytes = 1, .kept_outputs = outputs});
        for (int i = 0; i < 2; ++i) EXPECT_EQ(first_difference(expected, net.gradients(5, kept)), -1) << outputs;
        tensors[outputs] = guard.stats().tensors;
      }
      EXPECT_EQ(tensors[0], 2 * 7);
      if (options.policy) {
        EXPECT_GE(tensors[1], 2 * (7 + 6));
      } else {
        EXPECT_EQ(tensors[1], 2 * 7) << "outputs that a budget keeps are not divided";
      }
    }
  });
}

TEST(PartitionUse, BudgetGuardAroundSteps) {
  run_ranks(2, [](const comm::Group& group) {
    const PartitionedNet net;
    const auto expected = net.gradients(5);
    const PartitionGuard partition(group, all_sizes());
    const BudgetGuard budget(1.0);  // keeps all, so it does not depend on measured times
    for (int i = 0; i < 6; ++i) EXPECT_EQ(first_difference(expected, net.gradients(5)), -1) << i;
  });
}

TEST(PartitionUse, AKeptOutputThatIsModifiedIsRecomputed) {
  run_ranks(2, [](const comm::Group& group) {
    const at::Tensor w = formula({16, 16}, 3).requires_grad_();
    const auto gradient = [&] {
      const auto block = [w](const at::Tensor& x) { return x.mm(w); };
      const at::Tensor x = formula({16, 16}, 9).requires_grad_() * 1;
      const at::Tensor y = checkpoint({.policy = save_products}, block, x);
      y.mul_(2);
      return torch::autograd::grad({y.sum()}, {w})[0];
    };
    const at::Tensor expected = gradient();
    const PartitionGuard guard(group, all_sizes());
    EXPECT_TRUE(at::equal(expected, gradient()));
  });
}

TEST(PartitionUse, GuardsAroundReceiveTheSlices) {
  std::string folder = (std::filesystem::temp_directory_path() / "bellows-partition-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  run_ranks(2, [&](const comm::Group& group) {
    const PartitionedNet net;
    const auto expected = net.gradients(5);
    const OffloadGuard offload({.folder = folder, .min_bytes = 1});
    const PartitionGuard partition(group, all_sizes());
    for (int i = 0; i < 3; ++i) {
      const at::Tensor loss = net.loss(5);
      if (i == 1) offload.wait();
      loss.backward();
      EXPECT_EQ(first_difference(expected, net.take_gradients()), -1) << i;
    }
    EXPECT_GT(partition.stats().kept_bytes, 0);
    EXPECT_GE(offload.stats().bytes, partition.stats().kept_bytes);
  });
  std::filesystem::remove_all(folder);
}

// Each rank compresses its own slices. All ranks then compute with the same values.
TEST(PartitionUse, CompressGuardAroundIt) {
  std::vector<std::vector<at::Tensor>> gradients(2);
  run_ranks(2, [&](const comm::Group& group) {
    const PartitionedNet net;
    const auto expected = net.gradients(5);
    const CompressGuard compress({.group = 32, .min_size = 64, .seed = 1});
    const PartitionGuard partition(group, all_sizes());
    const auto got = net.gradients(5);
    EXPECT_GT(compress.bytes().before, 0);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT((got[i] - expected[i]).norm().item<double>(), 0.1 * expected[i].norm().item<double>()) << i;
    gradients[static_cast<size_t>(group.rank())] = got;
  });
  EXPECT_EQ(first_difference(gradients[0], gradients[1]), -1);
}

TEST(PartitionUse, LeavesSmallAndListedTensorsAlone) {
  run_ranks(2, [](const comm::Group& group) {
    const at::Tensor frozen = formula({64, 64}, 0), x = formula({64, 64}, 5).requires_grad_();
    const auto product = [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b).sin(); };
    const auto divided = [&](const PartitionOptions& options) {
      const PartitionGuard guard(group, options);
      checkpoint(product, x * 1, frozen).sum().backward();
      return guard.stats().tensors;
    };
    EXPECT_EQ(divided({.min_bytes = 1}), 2);
    EXPECT_EQ(divided({.min_bytes = 1, .leave = {frozen}}), 1);
    EXPECT_EQ(divided({.min_bytes = 64 * 64 * 4 + 1}), 0);
    EXPECT_THAT(message_of([&] { PartitionGuard(group, {.min_bytes = 0}); }),
                ::testing::HasSubstr("partition: expected min_bytes of at least 1, got 0"));
  });
}

}  // namespace bellows::recompute::testing
