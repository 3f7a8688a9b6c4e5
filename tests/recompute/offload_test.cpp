#include "bellows/recompute/offload.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <filesystem>
#include <thread>

#include "bellows/tap/allocator.h"
#include "tests/recompute/support.h"
#include "tests/support/errors.h"

namespace bellows::recompute::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A folder of its own, gone at the end.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "bellows-offload-XXXXXX").string();
  Folder() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  bool empty() const { return std::filesystem::is_empty(path); }
};

/// The largest file that this process may write, while it lives.
struct FileSizeLimit {
  rlimit before{};
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{bytes, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before); }
};

struct Net {
  Net() {
    torch::manual_seed(6);
    for (int i = 0; i < 6; ++i) {
      layers->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1)));
      layers->push_back(torch::nn::BatchNorm2d(8));
      layers->push_back(torch::nn::GELU());
    }
    x = torch::randn({4, 8, 64, 64}).contiguous(at::MemoryFormat::ChannelsLast);
  }
  at::Tensor loss() { return layers->forward(x).pow(2).mean(); }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> result;
    for (const at::Tensor& p : layers->parameters()) result.push_back(std::exchange(at::Tensor(p).mutable_grad(), {}));
    return result;
  }
  torch::nn::Sequential layers;
  at::Tensor x;
};

}  // namespace

TEST(Offload, GradientsAreTheSameBitForBit) {
  const Folder folder;
  Net net;
  net.loss().backward();
  const auto plain = net.gradients();
  for (const int64_t in_flight : {int64_t{1}, int64_t{1} << 20, int64_t{1} << 30}) {
    const OffloadGuard guard({.folder = folder.path, .in_flight_bytes = in_flight, .min_bytes = 1});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = net.loss();
      if (step == 1) guard.wait();  // all from the file, else much of it from memory
      loss.backward({}, step == 2);
      EXPECT_EQ(first_difference(plain, net.gradients()), -1) << in_flight << " " << step;
      if (step < 2) continue;
      loss.backward();
      EXPECT_EQ(first_difference(plain, net.gradients()), -1) << "once more";
    }
    EXPECT_TRUE(folder.empty());
    EXPECT_GT(guard.stats().tensors, 3 * 12);
    EXPECT_GT(guard.stats().read_in_time + guard.stats().waited, 12);
  }
}

TEST(Offload, FreesMemoryAndReusesTheFile) {
  tap::install_cpu_allocator();
  const Folder folder;
  Net net;
  const auto held = [&](const OffloadGuard* guard) {
    const int64_t before = tap::cpu_allocation_counters().current_bytes;
    const at::Tensor loss = net.loss();
    if (guard) guard->wait();
    const int64_t result = tap::cpu_allocation_counters().current_bytes - before;
    loss.backward();
    return result;
  };
  const int64_t plain = held(nullptr);
  OffloadGuard guard({.folder = folder.path, .reserve_bytes = 1 << 20});
  EXPECT_LT(held(&guard), 0.05 * static_cast<double>(plain));
  const int64_t file_bytes = guard.stats().file_bytes;
  EXPECT_GT(file_bytes, 0.9 * static_cast<double>(plain));
  for (int i = 0; i < 3; ++i) held(&guard);
  EXPECT_LE(guard.stats().file_bytes, 1.1 * static_cast<double>(file_bytes));
}

TEST(Offload, SaysBeforeTheStepThatRoomIsMissing) {
  const Folder folder;
  EXPECT_THAT(message_of([&] { OffloadGuard({.folder = folder.path, .reserve_bytes = int64_t{1} << 60}); }),
              AllOf(HasSubstr("cannot allocate 1152921504606846976 more bytes"), HasSubstr(folder.path),
                    HasSubstr("No space left on device"), HasSubstr("bytes are available")));
  EXPECT_THAT(message_of([&] { OffloadGuard({.folder = folder.path, .reserve_bytes = INT64_MAX}); }),
              HasSubstr("cannot allocate 92233720368547"));
  EXPECT_THAT(message_of([&] { OffloadGuard({.folder = folder.path + "/missing"}); }),
              AllOf(HasSubstr("/missing"), HasSubstr("No such file or directory")));
  const FileSizeLimit limit(1 << 20);
  EXPECT_THAT(message_of([&] { OffloadGuard({.folder = folder.path, .reserve_bytes = 2 << 20}); }),
              HasSubstr("ulimit -f"));
}

TEST(Offload, AFullDiskEndsTheStepWithAnError) {
  const Folder folder;
  Net net;
  const FileSizeLimit limit(1 << 20);
  {
    const OffloadGuard guard({.folder = folder.path});
    at::Tensor loss;
    EXPECT_THAT(message_of([&] {
                  loss = net.loss();
                  guard.wait();
                }),
                AllOf(HasSubstr("offload"), HasSubstr("1048576"), HasSubstr("ulimit -f")));
    if (loss.defined()) {
      EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("ulimit -f"));
    }
  }
  net.loss().backward();  // nothing is left behind
}

TEST(Offload, GoesTogetherWithCompressAndCheckpoint) {
  const Folder folder;
  Net net;
  const auto through_blocks = [&](const Call& call) {
    at::Tensor y = net.x;
    for (auto& layer : *net.layers) y = call([layer](const at::Tensor& z) mutable { return layer.forward(z); }, y);
    return y.pow(2).mean();
  };
  net.loss().backward();
  const auto plain = net.gradients();
  {
    const OffloadGuard guard({.folder = folder.path});
    through_blocks(checkpointed).backward();
    EXPECT_EQ(first_difference(plain, net.gradients()), -1);
    EXPECT_GT(guard.stats().tensors, 10);  // the inputs of the blocks
  }
  const OffloadGuard outer({.folder = folder.path, .min_bytes = 1024});
  const CompressGuard inner({.seed = 1});
  const at::Tensor loss = net.loss();
  EXPECT_NEAR(static_cast<double>(outer.stats().bytes), 0.25 * static_cast<double>(inner.bytes().before),
              0.02 * static_cast<double>(inner.bytes().before));
  outer.wait();
  loss.backward();
  const auto close = net.gradients();
  for (size_t i = 0; i < plain.size(); i += 4)
    EXPECT_LT((close[i] - plain[i]).norm().item<double>(), 0.05 * plain[i].norm().item<double>()) << i;
}

TEST(Offload, BackwardOnOtherThreadsAndAfterTheGuard) {
  const Folder folder;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&folder, i] {
      const at::Tensor x = torch::full({1 << 15}, 0.1 * i, torch::requires_grad());
      at::Tensor loss;
      {
        const OffloadGuard guard({.folder = folder.path, .in_flight_bytes = 1 << 16});
        at::Tensor y = x;
        for (int k = 0; k < 20; ++k) y = y.sin();
        loss = y.sum();
        if (i % 2) guard.wait();
      }
      std::thread([loss] { loss.backward(); }).join();
      at::Tensor y = x.detach().requires_grad_(), z = y;
      for (int k = 0; k < 20; ++k) z = z.sin();
      EXPECT_TRUE(at::equal(x.grad(), torch::autograd::grad({z.sum()}, {y})[0]));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(folder.empty());
}

TEST(Offload, ToTheHostLeavesTheHostsTensorsAlone) {
  Net net;
  net.loss().backward();
  const auto plain = net.gradients();
  const OffloadGuard guard({.to = OffloadTo::host});
  net.loss().backward();
  EXPECT_EQ(first_difference(plain, net.gradients()), -1);
  EXPECT_EQ(guard.stats().tensors, 0);
  EXPECT_THAT(message_of([] { OffloadGuard({.to = OffloadTo::host, .folder = "/tmp"}); }),
              HasSubstr("OffloadTo::file"));
  EXPECT_THAT(message_of([] { OffloadGuard({.in_flight_bytes = 0}); }),
              HasSubstr("in_flight_bytes of at least 1, got 0"));
}

TEST(Offload, InputsOfARegionThatWereOneMemoryComeBackAsTwo) {
  const at::Tensor x = torch::randn({32, 32}, torch::requires_grad());
  const auto f = [](const at::Tensor& a, const at::Tensor& b) { return (a.sin() * b.t().cos() * a.t()).exp(); };
  const auto gradient = [&](bool recomputed) {
    const OffloadGuard guard({.min_bytes = 1});
    const at::Tensor h = x * 2, t = h.t();
    const at::Tensor loss = (recomputed ? checkpoint(f, h, t) : f(h, t)).sum();
    guard.wait();
    return torch::autograd::grad({loss}, {x})[0];
  };
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
}

}  // namespace bellows::recompute::testing
