#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/support/bench.h"

namespace bellows::bench {

/// A peer that runs as a child process. It reads commands from its standard input and answers each command with one line on its
/// standard output. The child first prints the line "ready". `run N` runs N units of work and answers with their time in seconds.
/// The program and its peer define all other commands. Standard error is passed through. The child ends with this process.
/// Threads: one owner
class PeerProcess {
 public:
  /// Params: command – program and arguments; the program is searched for in PATH
  ///         start_timeout_s – maximum time until the line "ready", in seconds
  /// Throws: c10::Error if the child cannot be started, ends, or is not ready in time
  explicit PeerProcess(const std::vector<std::string>& command, double start_timeout_s = 120);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Sends a line and returns the answer.
  /// Throws: c10::Error if the child ended, or if it did not answer within timeout_s. In the second case, it is killed
  std::string ask(std::string_view line, double timeout_s = 120);
  /// Returns the answer as numbers.
  /// Throws: c10::Error if the answer does not consist of numbers
  std::vector<double> ask_numbers(std::string_view line, double timeout_s = 120);
  /// Sends `run n` and returns the time of the child in seconds.
  double run(int64_t n);
  /// Returns the peer as a side for compare().
  Contestant as_contestant(std::string name);

 private:
  std::string read_line(double timeout_s, std::string_view waiting_for);
  void kill_child();

  std::string name_, pending_;
  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1;
};

}  // namespace bellows::bench
