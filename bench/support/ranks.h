#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/world.h"
#include "bench/support/bench.h"

// The ranks of one side of a comparison are processes. Rank 0 is a PeerProcess, starts the other ranks, and forwards the
// commands to them.
namespace bellows::bench {

/// Returns the command with which this program serves as a rank.
inline std::vector<std::string> our_command() {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "--serve"};
}

/// Returns the command that starts rank 0 of some ranks with one thread each.
inline std::vector<std::string> with_world(const std::vector<std::string>& command, int ranks) {
  const int port = comm::Store::serve("127.0.0.1", 0).port();
  std::vector<std::string> result = {"env",
                                     "RANK=0",
                                     "LOCAL_RANK=0",
                                     "WORLD_SIZE=" + std::to_string(ranks),
                                     "LOCAL_WORLD_SIZE=" + std::to_string(ranks),
                                     "MASTER_ADDR=127.0.0.1",
                                     "MASTER_PORT=" + std::to_string(port),
                                     "OMP_NUM_THREADS=1"};
  result.insert(result.end(), command.begin(), command.end());
  return result;
}

/// How long the sides of a comparison of training steps run.
inline Plan steps_plan(const Options& options) {
  return {.window_s = options.quick ? 0.4 : 1.5,
          .windows = options.quick ? 5 : 15,
          .warmup = 1,
          .budget_s = options.quick ? 5 : 1e9};
}

/// Whether numbers of two sides are equal, except for a relative tolerance.
inline bool close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  bool result = a.size() == b.size() && !a.empty();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= tolerance * std::abs(b[i]);
  return result;
}

/// In rank 0, starts this program again as the other ranks. They end with this process.
inline void start_other_ranks(const char* program) {
  if (std::getenv("RANK")[0] != '0') return;
  for (int rank = 1; rank < std::atoi(std::getenv("WORLD_SIZE")); ++rank) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    execl("/proc/self/exe", program, "--serve", nullptr);
    _exit(127);
  }
}

/// Returns the time of `count` steps of all ranks.
inline double seconds_of_steps(const std::function<void()>& step, int64_t count, const World& world) {
  comm::barrier(world);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) step();
  comm::barrier(world);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Returns the numbers as an answer of a side.
inline std::string numbers_text(const std::vector<double>& numbers) {
  std::ostringstream text;
  text << std::setprecision(10);
  for (size_t i = 0; i < numbers.size(); ++i) text << (i > 0 ? " " : "") << numbers[i];
  return text.str();
}

/// Returns the losses of `count` steps as an answer of a side.
inline std::string losses_text(const std::function<double()>& step, int64_t count) {
  std::vector<double> losses(static_cast<size_t>(count));
  std::generate(losses.begin(), losses.end(), step);
  return numbers_text(losses);
}

/// Functions that answer commands. They read the rest of the line.
using RankCommands = std::map<std::string, std::function<std::string(std::istream& words)>>;

/// Returns the function of the command `losses NAME COUNT`, which replaces `run` by a new one and runs COUNT steps.
/// Params: make – creates the run NAME; step – runs one step and returns its loss
template <class Run, class Make, class Step>
RankCommands::mapped_type losses_command(std::unique_ptr<Run>& run, Make make, Step step) {
  return [&run, make, step](std::istream& words) {
    std::string name;
    int64_t count = 0;
    words >> name >> count;
    run.reset();  // before the new one, so that only one is in memory
    run = make(name);
    return losses_text([&] { return step(*run); }, count);
  };
}

/// Answers the commands that rank 0 reads from its standard input: `run N` with the time of N calls of `step`, and other
/// commands by their functions. All ranks call the same functions.
inline int serve_commands(const World& world, const std::function<void()>& step, RankCommands commands) {
  commands["run"] = [&](std::istream& words) {
    int64_t count = 0;
    words >> count;
    return std::to_string(seconds_of_steps(step, count, world));
  };
  const bool first = world.rank() == 0;
  if (first) std::cout << "ready" << std::endl;
  for (std::string line; !first || std::getline(std::cin, line);) {
    line = comm::broadcast_string(line, 0, world);
    if (line.empty()) break;
    std::istringstream words(line);
    std::string command;
    words >> command;
    const std::string answer = commands.at(command)(words);
    if (first) std::cout << answer << std::endl;
  }
  if (first) comm::broadcast_string("", 0, world);
  return 0;
}

}  // namespace bellows::bench
