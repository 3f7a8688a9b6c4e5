#include "bellows/plan/link_bandwidth.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <chrono>
#include <exception>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/comm/group_parts.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store_impl.h"
#include "bellows/comm/watchdog.h"
#include "bellows/core/stats.h"
#include "bellows/system/thread.h"

namespace bellows::train {

namespace {

constexpr int64_t link_bytes = 16 << 20;
constexpr int link_repeats = 5, latency_repeats = 101;
constexpr double link_timeout_s = 60, link_warning_s = 10;

/// Returns the seconds of each all-reduce of `bytes` bytes on this rank.
std::vector<double> time_all_reduces(const comm::Group& group, int64_t bytes, int repeats) {
  using Clock = std::chrono::steady_clock;
  const at::Tensor tensor = at::zeros({bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
  comm::all_reduce(tensor, group);  // warm-up: allocates memory and buffers
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    comm::barrier(group);
    const auto start = Clock::now();
    comm::all_reduce(tensor, group);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

std::vector<double> run_measured_rank(const comm::Store& store, int rank, int count, int64_t bytes, int repeats) {
  comm::GroupParts parts{.name = "link", .rank = rank, .address = "127.0.0.1", .timeout_s = link_timeout_s};
  parts.ranks.resize(static_cast<size_t>(count));
  std::iota(parts.ranks.begin(), parts.ranks.end(), 0);
  const std::vector<comm::Peer> peers(parts.ranks.size(), comm::this_peer());
  const auto watchdog = comm::Watchdog::start(store.another(), rank, peers, link_warning_s);
  std::vector<double> seconds;
  try {
    seconds = time_all_reduces(comm::make_group(parts, store.another(), watchdog), bytes, repeats);
  } catch (...) {
    watchdog->leave();  // otherwise, the watchdog's thread would keep running
    throw;
  }
  watchdog->leave();
  return seconds;
}

/// Returns the median seconds of an all-reduce between threads of this process.
double all_reduce_time(int ranks, int64_t bytes, int repeats) {
  TORCH_CHECK_VALUE(ranks >= 2 && ranks <= most_measured_ranks, "measure_link: expected 2 to ", most_measured_ranks,
                    " ranks, got ", ranks, ".");
  check_threads(ranks);  // with fewer threads, the ranks would wait for each other
  // In memory: on a busy machine, connecting to a TCP store can take seconds, and the threads of the watchdogs, which
  // do it, could outlive the process.
  const comm::Store store(std::make_shared<comm::Store::State>(
      comm::Store::State{.store = c10::make_intrusive<c10d::HashStore>(), .port = 0}));
  std::vector<std::vector<double>> seconds(static_cast<size_t>(ranks));
  std::vector<std::exception_ptr> errors(seconds.size());
  {
    std::vector<std::jthread> threads;
    for (const auto rank : c10::irange(seconds.size())) {
      threads.push_back(start_thread<std::jthread>("measure_link", [&, rank] {
        try {
          seconds[rank] = run_measured_rank(store, static_cast<int>(rank), ranks, bytes, repeats);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      }));
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return median(seconds.front());
}

}  // namespace

double measure_link(int ranks) {
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(link_bytes) / all_reduce_time(ranks, link_bytes, link_repeats);
}

double measure_link_latency(int ranks) {
  return all_reduce_time(ranks, sizeof(float), latency_repeats) / (2.0 * (ranks - 1));
}

}  // namespace bellows::train
