// Techniques that save memory, on the GPU: the bits of plain training, and less memory.
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include "bellows/recompute.h"
#include "tests/device/support.h"

namespace bellows::recompute {

namespace {

using test::gpu;
using test::Tensors;

struct Net {
  explicit Net(bool drops) : dropout(drops) {
    torch::manual_seed(6);
    for (int i = 0; i < 6; ++i) {
      torch::nn::Sequential block(torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)),
                                  torch::nn::BatchNorm2d(32), torch::nn::GELU());
      if (drops) block->push_back(torch::nn::Dropout(0.2));
      blocks.push_back(block);
      block->to(gpu);
    }
    x = torch::randn({16, 32, 64, 64}).to(gpu);
  }

  using Call = std::function<at::Tensor(const Layer& block, const at::Tensor& x)>;
  /// Loss, gradients, running statistics, and the next random numbers, after two steps.
  Tensors trained(const Call& call) {
    torch::manual_seed(7);
    Tensors result;
    for (int step = 0; step < 2; ++step) {
      at::Tensor y = x;
      for (torch::nn::Sequential& block : blocks) y = call([&](const at::Tensor& in) { return block->forward(in); }, y);
      const at::Tensor loss = y.pow(2).mean();
      loss.backward();
      result.push_back(loss.detach());
    }
    for (torch::nn::Sequential& block : blocks) {
      for (const at::Tensor& p : block->parameters()) result.push_back(std::exchange(at::Tensor(p).mutable_grad(), {}));
      for (const at::Tensor& b : block->buffers()) result.push_back(b.clone());
    }
    result.push_back(torch::rand({4}, gpu));
    return result;
  }
  void reset() { *this = Net(dropout); }

  bool dropout;
  std::vector<torch::nn::Sequential> blocks;
  at::Tensor x;
};

at::Tensor plainly(const Layer& block, const at::Tensor& x) {
  return block(x);
}

void expect_same_bits(const Tensors& ours, const Tensors& plain) {
  ASSERT_EQ(ours.size(), plain.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::equal(ours[i], plain[i])) << "tensor " << i;
}

/// Peak of the memory in use during one run, above what was in use before.
int64_t peak_of(const std::function<void()>& run) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  torch::cuda::synchronize();
  const auto in_use = [] {
    return allocator::getDeviceStats(0)
        .allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  };
  allocator::resetPeakStats(0);
  const int64_t before = in_use().current;
  run();
  torch::cuda::synchronize();
  return in_use().peak - before;
}

class MemoryOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    deterministic_ = at::globalContext().deterministicCuDNN();
    at::globalContext().setDeterministicCuDNN(true);  // the algorithms of cuDNN, not ours, would differ between runs
  }
  void TearDown() override { at::globalContext().setDeterministicCuDNN(deterministic_); }
  bool deterministic_ = false;
};

}  // namespace

TEST_F(MemoryOnDevice, CheckpointsGiveTheSameBitsInLessMemory) {
  for (const bool drops : {false, true}) {
    SCOPED_TRACE(drops ? "with dropout" : "without dropout");
    Net net(drops);
    net.trained(plainly);
    net.reset();
    Tensors plain, ours;
    const int64_t plain_peak = peak_of([&] { plain = net.trained(plainly); });
    for (const std::optional<double> budget : {std::optional<double>(), std::optional<double>(0.5)}) {
      net.reset();
      const int64_t peak = peak_of([&] {
        ours = net.trained([&](const Layer& block, const at::Tensor& x) {
          return checkpoint(CheckpointOptions{.budget = budget}, block, x);
        });
      });
      expect_same_bits(ours, plain);
      EXPECT_LT(static_cast<double>(peak), static_cast<double>(plain_peak) * (budget ? 0.9 : 0.7));
    }
  }
}

TEST_F(MemoryOnDevice, OffloadedActivationsGiveTheSameBitsInLessMemory) {
  Net net(true);
  net.trained(plainly);
  net.reset();
  Tensors plain, ours;
  const int64_t plain_peak = peak_of([&] { plain = net.trained(plainly); });
  for (const OffloadTo to : {OffloadTo::host, OffloadTo::file}) {
    net.reset();
    OffloadStats stats;
    const int64_t peak = peak_of([&] {
      const OffloadGuard guard({.to = to, .in_flight_bytes = 16 << 20});
      ours = net.trained(plainly);
      stats = guard.stats();
    });
    expect_same_bits(ours, plain);
    EXPECT_GT(stats.tensors, 0);
    EXPECT_LT(peak, plain_peak) << "to " << static_cast<int>(to);
  }
}

TEST_F(MemoryOnDevice, CompressedActivationsKeepTheLossAndBoundTheGradients) {
  Net net(true);
  const Tensors plain = net.trained(plainly);
  net.reset();
  const CompressGuard guard({.bits = ActivationBits::int8});
  const Tensors ours = net.trained(plainly);
  EXPECT_GT(guard.bytes().before, guard.bytes().after);
  EXPECT_TRUE(at::equal(ours[0], plain[0])) << "the loss of the first step";
  for (size_t i = 2; i < ours.size() - 1; ++i) {
    const at::Tensor a = ours[i].to(at::kCPU, at::kDouble), b = plain[i].to(at::kCPU, at::kDouble);
    // Gradients that are rounding noise (biases in front of a batch norm) have no relative error.
    EXPECT_LE((a - b).abs().max().item<double>(), 2e-2 * b.abs().max().item<double>() + 1e-6) << i;
  }
}

}  // namespace bellows::recompute
