// Collectives of ranks on one machine: shared memory against the sockets of Gloo, which PyTorch uses.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/comm/group_parts.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/watchdog.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

constexpr double timeout_s = 60;

/// The groups of a rank.
struct Groups {
  comm::Group shared, sockets;
};

comm::Group make_group(const comm::Store& store, const std::shared_ptr<comm::Watchdog>& watchdog, int rank, int ranks,
                       const std::string& name) {
  comm::GroupParts parts{.name = name, .rank = rank, .address = "127.0.0.1", .timeout_s = timeout_s};
  parts.ranks.resize(static_cast<size_t>(ranks));
  std::iota(parts.ranks.begin(), parts.ranks.end(), 0);
  return comm::make_group(parts, store.another(), watchdog);
}

/// Ranks as threads of this process. They exchange tensors in the same way as processes.
class Ranks {
 public:
  using Work = std::function<void(const Groups&)>;

  explicit Ranks(int count) : meet_(count + 1), store_(comm::Store::serve("127.0.0.1", 0)) {
    for (int rank = 0; rank < count; ++rank) threads_.emplace_back([this, rank, count] { serve(rank, count); });
    for (const char* setting : {"1", "0"}) {  // all ranks of a group read the same setting
      setenv("BELLOWS_SHARED_MEMORY", setting, /*overwrite=*/1);
      meet_.arrive_and_wait();
      meet_.arrive_and_wait();
    }
  }
  ~Ranks() {
    work_ = nullptr;
    meet_.arrive_and_wait();
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Runs the work on all ranks.
  void run(Work work) {
    work_ = std::move(work);
    meet_.arrive_and_wait();
    meet_.arrive_and_wait();
  }

 private:
  void serve(int rank, int count) {
    const std::vector<comm::Peer> peers(static_cast<size_t>(count), comm::this_peer());
    const auto watchdog = comm::Watchdog::start(store_.another(), rank, peers, timeout_s / 2);
    std::vector<comm::Group> groups;
    for (const char* name : {"shared memory", "sockets"}) {
      meet_.arrive_and_wait();
      groups.push_back(make_group(store_, watchdog, rank, count, name));
      meet_.arrive_and_wait();
    }
    for (meet_.arrive_and_wait(); work_; meet_.arrive_and_wait()) {
      work_({groups[0], groups[1]});
      meet_.arrive_and_wait();
    }
    groups.clear();
    watchdog->leave();
  }

  std::barrier<> meet_;
  const comm::Store store_;
  Work work_;
  std::vector<std::jthread> threads_;
};

using Collective = std::function<at::Tensor(const at::Tensor&, const comm::Group&)>;

struct Kind {
  std::string name;
  Collective call;
};

std::vector<Kind> kinds() {
  return {
      {"all_reduce", [](const at::Tensor& t, const comm::Group& group) { return comm::all_reduce(t, group); }},
      {"all_gather_in_place",
       [](const at::Tensor& t, const comm::Group& group) { return comm::all_gather_in_place(t, group); }},
      {"reduce_scatter", [](const at::Tensor& t, const comm::Group& group) { return comm::reduce_scatter(t, group); }}};
}

/// Whether both ways give the same sums of small whole numbers, which are exact in any order.
bool agree(Ranks& ranks, const Kind& kind, int64_t count) {
  std::array<std::atomic<int>, 2> equal{};
  ranks.run([&](const Groups& groups) {
    const at::Tensor own = at::arange(count, at::kFloat).remainder(97).add(groups.shared.rank());
    const at::Tensor one = kind.call(own.clone(), groups.shared), other = kind.call(own.clone(), groups.sockets);
    ++equal[at::equal(one, other) ? 1 : 0];
  });
  return equal[0] == 0;
}

Contestant contestant(const std::string& name, Ranks& ranks, const Kind& kind, int64_t count,
                      comm::Group Groups::*group) {
  return {name, [&ranks, kind, count, group](int64_t n) {
            double seconds = 0;
            ranks.run([&](const Groups& groups) {
              const at::Tensor tensor = at::empty({count}, at::kFloat).zero_();
              const double measured = seconds_of([&] {
                for (int64_t i = 0; i < n; ++i) kind.call(tensor, groups.*group);
              });
              if (groups.shared.rank() == 0) seconds = measured;
            });
            return seconds;
          }};
}

int run(const Options& options) {
  Report report("collectives", options);
  const int count = std::stoi(options.extra.at("ranks"));
  Ranks ranks(count);
  const std::vector<int64_t> sizes = {1 << 10, 256 << 10, 16 << 20};  // elements
  for (const int64_t numel : sizes) {
    for (const Kind& kind : kinds()) {
      const std::string kib = std::to_string(numel * 4 / 1024);
      const std::string name = kind.name + " of " + kib + " KiB, " + options.extra.at("ranks") + " ranks";
      if (!report.has_time_for(name)) continue;
      const bool equal = agree(ranks, kind, numel / count * count);
      const Comparison comparison =
          compare({contestant("shared memory", ranks, kind, numel / count * count, &Groups::shared),
                   contestant("sockets (Gloo)", ranks, kind, numel / count * count, &Groups::sockets)},
                  {.window_s = options.quick ? 0.1 : 0.3, .windows = options.quick ? 5 : 15});
      report.add(time_row(name, "time per call", "ms", comparison, equal));
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Collectives of ranks on one machine, as threads: through shared memory, and through the sockets of "
      "Gloo, which PyTorch\nuses. The results are compared first.",
      run, {{"ranks", "2"}});
}
