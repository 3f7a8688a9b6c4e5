// A rank of offload_memory_test: trains layers with ZeRO-3 and AdamW, and prints its peak memory in MiB.
//   offload_rank WEIGHTS FOLDER
// The shards and the state are in files in FOLDER; in memory if FOLDER is "none".
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "bellows/comm/collectives.h"
#include "bellows/comm/world.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bellows/system/allocator_reuse.h"
#include "bellows/tap/skip_initialization.h"

namespace {

/// The memory that only this process uses, and the pages of unlinked files that it has mapped, in KiB. Shared libraries
/// do not count.
int64_t used_kib() {
  int64_t kib = 0;
  std::ifstream maps("/proc/self/smaps");
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t value = 0;
    words >> key;
    if (key.find('-') != std::string::npos && key.back() != ':') {  // the start of a mapping
      const bool file = line.find('/') != std::string::npos;
      counts = !file || line.ends_with("(deleted)");
    } else if (key == "Rss:" && counts) {
      words >> value;
      kib += value;
    }
  }
  return kib;
}

/// Measures in the background.
class PeakMemory {
 public:
  PeakMemory() : before_(used_kib()), thread_([this] { run(); }) {}
  ~PeakMemory() {
    ending_ = true;
    thread_.join();
  }
  int64_t mib() const { return (peak_ - before_) / 1024; }

 private:
  void run() {
    while (!ending_) {
      peak_ = std::max<int64_t>(peak_, used_kib());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  const int64_t before_;
  std::atomic<int64_t> peak_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

void train(const bellows::comm::Group& group, const std::string& weights, const std::string& folder) {
  using namespace bellows;
  torch::nn::Sequential net;
  {
    const tap::SkipInitialization skip;
    for (int layer = 0; layer < 16; ++layer) net->push_back(torch::nn::Linear(1024, 1024));
  }
  parallel::ShardOptions options{.stage = 3, .bucket_bytes = 4 << 20, .weights_file = weights};
  if (folder != "none") {
    options.offload_parameters = options.offload_state = parallel::Offload::file;
    options.offload_folder = folder;
    options.offload_window_bytes = 2 << 20;
  }
  const PeakMemory peak;
  const auto adamw = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-4});
  const auto optimizer = parallel::zero_optimizer(adamw, Model::of(net), group, options);
  double loss = 0;
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    const at::Tensor error = net->forward(torch::ones({4, 1024})).square().mean();
    loss = error.item<double>();
    error.backward();
    optimizer->step();
  }
  const auto [file_bytes, resident_bytes] = optimizer->offloaded_bytes();
  std::printf("rank %d: peak %lld MiB, files %lld MiB, resident %lld MiB, loss %.17g\n", group.rank(),
              static_cast<long long>(peak.mib()), static_cast<long long>(file_bytes >> 20),
              static_cast<long long>(resident_bytes >> 20), loss);
}

}  // namespace

int main(int, char** argv) {
  try {
    at::set_num_threads(1);
    bellows::return_freed_memory();
    const bellows::comm::World world = bellows::comm::init();
    train(world.group(), argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
