#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bellows/comm/rendezvous/store.h"
#include "tests/cli/process.h"

namespace bellows::comm::testing {

inline const std::string rank_program = BELLOWS_BIN_DIR "/comm_rank";

/// `bellows launch OPTIONS -- COMMAND`
inline cli::Launch launch_of(std::vector<std::string> options, const std::vector<std::string>& command,
                             std::vector<std::string> environment = {}) {
  options.insert(options.begin(), "launch");
  options.emplace_back("--");
  options.insert(options.end(), command.begin(), command.end());
  return {.arguments = std::move(options), .environment = std::move(environment)};
}

inline cli::Outcome launched(std::vector<std::string> options, const std::vector<std::string>& command) {
  return cli::Process(launch_of(std::move(options), command)).finish(120);
}

/// A process without a launcher.
struct Alone {
  int exit_code = -1;
  std::string text;  ///< standard output and error
};

inline Alone run_shell(const std::string& command) {
  Alone result;
  std::FILE* pipe = popen(command.c_str(), "re");
  std::array<char, 4096> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.text.append(buffer.data(), count);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

/// Runs `env ENVIRONMENT comm_rank ARGUMENTS`.
inline std::future<Alone> start_rank(const std::string& environment, const std::string& arguments) {
  return std::async(std::launch::async, run_shell,
                    "env -u BELLOWS_TOKEN OMP_NUM_THREADS=1 " + environment + " timeout -k 1 60 " + rank_program + " " +
                        arguments + " 2>&1");
}

/// As torchrun would set them.
inline std::string place(int rank, int size, int port, const std::string& more = "") {
  return "RANK=" + std::to_string(rank) + " WORLD_SIZE=" + std::to_string(size) +
         " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) + " " + more;
}

inline int free_port() {
  return Store::serve("127.0.0.1", 0).port();
}

/// The number in the first line "[rank RANK] WORD NUMBER".
inline int number_of_rank(const std::string& text, int rank, const std::string& word) {
  const std::string start = "[rank " + std::to_string(rank) + "] " + word + " ";
  const size_t at = text.find(start);
  return at == text.npos ? -1 : std::stoi(text.substr(at + start.size()));
}

inline bool ended(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.empty() || text.find(") Z") != text.npos;
}

inline bool ends_within(int pid, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!ended(pid)) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace bellows::comm::testing
