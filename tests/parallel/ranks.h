#pragma once

#include <ATen/Parallel.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "bellows/comm/group_parts.h"
#include "bellows/comm/rendezvous/store_impl.h"
#include "bellows/comm/watchdog.h"
#include "bellows/core/error.h"

namespace bellows::parallel::testing {

/// Runs `body` once a rank, each on a thread of its own, connected over loopback as processes would be. What belongs to a
/// process, such as the default generator, the ranks share; tests that need more start programs (tests/comm/launched.h).
/// The store is in memory: for each connection to a TCP store, libtorch asks DNS for the name of the address, which can
/// take 5 s.
/// Throws: what the first rank threw that did
inline void run_ranks(int count, const std::function<void(const comm::Group&)>& body, double timeout_s = 60) {
  const comm::Store store(
      std::make_shared<comm::Store::State>(comm::Store::State{c10::make_intrusive<c10d::HashStore>(), 0}));
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(count));
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  std::vector<std::exception_ptr> errors(ranks.size());
  const auto run = [&](int rank) {
    at::set_num_threads(1);  // ranks share the machine
    std::shared_ptr<comm::Watchdog> watchdog;
    try {
      const std::vector<comm::Peer> peers(ranks.size(), comm::this_peer());
      if (count > 1) watchdog = comm::Watchdog::start(store.another(), rank, peers, timeout_s / 2);
      const comm::GroupParts parts{
          .name = "world", .ranks = ranks, .rank = rank, .address = "127.0.0.1", .timeout_s = timeout_s};
      body(comm::make_group(parts, store.another(), watchdog));
    } catch (...) {
      errors[static_cast<size_t>(rank)] = std::current_exception();
    }
    if (watchdog) watchdog->leave();
  };
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const int rank : ranks) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Calls run_ranks(). Returns the message of each rank's error, or "no error".
inline std::vector<std::string> messages_of_ranks(int count, const std::function<void(const comm::Group&)>& body,
                                                  double timeout_s = 60) {
  std::vector<std::string> messages(static_cast<size_t>(count), "no error");
  const auto keep_message = [&](const comm::Group& group) {
    try {
      body(group);
    } catch (const std::exception& error) {
      messages[static_cast<size_t>(group.rank())] = user_message(error);
    }
  };
  run_ranks(count, keep_message, timeout_s);
  return messages;
}

}  // namespace bellows::parallel::testing
