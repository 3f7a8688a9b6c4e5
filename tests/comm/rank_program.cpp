// One rank of the tests of many processes: `comm_rank SCENARIO …`. Ends with 0 and a line "rank R: SCENARIO done", or with 1
// and the error on standard error.
#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <thread>

#include "bellows/comm/collectives.h"
#include "bellows/comm/point_to_point.h"
#include "bellows/comm/world.h"
#include "bellows/core/error.h"
#include "rank_scenarios.h"

namespace bellows::comm::testing {

namespace {

using Arguments = std::vector<std::string>;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

World join_world(const Arguments& arguments) {
  const double collective_s = arguments.size() > 1 ? std::stod(arguments[1]) : 60;
  return init({.join_timeout_s = arguments.empty() ? 30 : std::stod(arguments[0]),
               .collective_timeout_s = collective_s,
               .warn_after_s = collective_s / 3});
}

/// join [JOIN_TIMEOUT]
void join(const Arguments& arguments) {
  const World world = join_world(arguments);
  const at::Tensor sum = all_reduce(at::ones({1}), world);
  say(c10::str("rank ", world.rank(), " of ", world.size(), " sum ", sum.item<float>(), " ", world.backend()));
}

/// steps JOIN_TIMEOUT COLLECTIVE_TIMEOUT: until a rank is killed.
void steps(const Arguments& arguments) {
  const World world = join_world(arguments);
  say(c10::str("pid ", getpid()));
  for (int step = 0;; ++step) {
    all_reduce(at::ones({4}), world);
    if (step % 10 == 0) say(c10::str("step ", step));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// other JOIN_TIMEOUT COLLECTIVE_TIMEOUT: rank 1 calls another collective than the others.
void other(const Arguments& arguments) {
  const World world = join_world(arguments);
  all_reduce(at::ones({4}), world);
  if (world.rank() == 1) all_gather(at::ones({3}), world);
  all_reduce(at::ones({4}), world);
}

/// late JOIN_TIMEOUT COLLECTIVE_TIMEOUT: rank 1 does something else for longer than the others wait.
void late(const Arguments& arguments) {
  const World world = join_world(arguments);
  all_reduce(at::ones({4}), world);
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(100));
  all_reduce(at::ones({5}), world);
}

/// uneven JOIN_TIMEOUT COLLECTIVE_TIMEOUT: rank 1 has fewer batches. A second wait() throws the same error.
void uneven(const Arguments& arguments) {
  const World world = join_world(arguments);
  for (int batch = 0; batch < (world.rank() == 1 ? 2 : 3); ++batch) {
    Pending pending = all_reduce_async(at::ones({4}), world);
    try {
      pending.wait();
    } catch (const std::exception&) {
      pending.wait();
      say("got unfinished data");
    }
  }
}

/// unsent JOIN_TIMEOUT COLLECTIVE_TIMEOUT: rank 1 never sends what rank 0 waits for.
void unsent(const Arguments& arguments) {
  const World world = join_world(arguments);
  if (world.rank() == 1) {
    send(at::ones({4}), 0, world);
    std::this_thread::sleep_for(std::chrono::seconds(100));
  }
  receive(at::ones({4}), 1, world);
  receive(at::ones({4}), 1, world);
}

/// chain JOIN_TIMEOUT COLLECTIVE_TIMEOUT: each rank passes tensors on, until a rank is killed.
void chain(const Arguments& arguments) {
  const World world = join_world(arguments);
  say(c10::str("pid ", getpid()));
  at::Tensor token = at::zeros({4});
  for (int step = 0;; ++step) {
    if (world.rank() > 0) receive(token, world.rank() - 1, world);
    send(token, (world.rank() + 1) % world.size(), world);
    if (world.rank() == 0) receive(token, world.size() - 1, world);
    if (step % 10 == 0) say(c10::str("step ", step));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// once: rank 1 fails in the first round.
void once(const Arguments& arguments) {
  const World world = join_world(arguments);
  all_reduce(at::ones({1}), world);
  say(c10::str("round ", world.restart_count(), " rank ", world.rank(), " of ", world.size()));
  if (world.restart_count() == 0 && world.rank() == 1) _exit(9);
  barrier(world);
}

const std::map<std::string, Scenario>& scenarios() {
  static const std::map<std::string, Scenario> all = {{"collectives", collectives},
                                                      {"mesh", mesh},
                                                      {"transfers", transfers},
                                                      {"join", join},
                                                      {"steps", steps},
                                                      {"other", other},
                                                      {"late", late},
                                                      {"uneven", uneven},
                                                      {"once", once},
                                                      {"unsent", unsent},
                                                      {"chain", chain}};
  return all;
}

}  // namespace

}  // namespace bellows::comm::testing

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  bellows::comm::testing::scenarios().at(arguments.at(0))({arguments.begin() + 1, arguments.end()});
  std::printf("%s done\n", argv[1]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
