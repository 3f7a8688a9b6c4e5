#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/support/bench.h"

namespace bellows::bench {

/// A peer as a child process that takes commands on its standard input and answers each with one line on its standard
/// output. The child starts with the line "ready". `run N` does N units of work and answers with the seconds they took.
/// Further commands are a matter between the program and its peer. Standard error passes through. The child dies with
/// this process. Threads: one owner.
class PeerProcess {
 public:
  /// Params: command – program and arguments; the program is looked up in PATH
  ///         start_timeout_s – how long the child may take until "ready"
  /// Throws: c10::Error – it cannot be started, ends, or is not ready in time
  explicit PeerProcess(const std::vector<std::string>& command, double start_timeout_s = 120);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Sends a line and returns the answer. Throws: c10::Error – the child ended, or did not answer within timeout_s: it
  /// is killed
  std::string ask(std::string_view line, double timeout_s = 120);
  /// The answer as numbers. Throws: c10::Error – an answer that is not numbers
  std::vector<double> ask_numbers(std::string_view line, double timeout_s = 120);
  /// `run n`: the seconds that the child took.
  double run(int64_t n);
  /// As a side for compare().
  Contestant as_contestant(std::string name);

 private:
  std::string read_line(double timeout_s, std::string_view waiting_for);
  void kill_child();

  std::string name_, pending_;
  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1;
};

}  // namespace bellows::bench
