#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/comm/launch/launcher.h"

namespace bellows::comm {

/// Kills process groups when the process that created the guard ends for any reason. A small helper process detects the
/// end of this process.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void add(pid_t group);
  void remove(pid_t group);
  /// If the helper process was killed, starts another one and logs a warning. Call this function several times a
  /// second.
  /// Throws: c10::Error if the system cannot start a process
  void replace_if_lost();

 private:
  void start();
  void tell(pid_t message) const;

  int pipe_ = -1;
  pid_t pid_ = -1;  ///< -1 if the helper process was killed and not replaced
  std::set<pid_t> groups_;
};

/// Receives the signals of this thread through a file descriptor.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_; }
  /// Returns the next signal, or 0 if there is none.
  int next() const;
  const sigset_t& mask_before() const { return before_; }

 private:
  int fd_ = -1;
  sigset_t before_;
};

/// Whether the signal requests a stop: SIGINT, SIGTERM, SIGHUP or SIGQUIT.
bool asks_to_stop(int signal);

/// A rank: a process in its own process group, whose output is read line by line.
class RankProcess {
 public:
  /// Throws: c10::ValueError if the program does not exist or cannot be executed
  RankProcess(int rank, const std::vector<std::string>& command, const std::vector<std::string>& environment,
              const Signals& signals);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool running() const { return !status_; }
  /// File descriptors of standard output and standard error. A descriptor is -1 after the end of its output.
  const std::array<int, 2>& outputs() const { return outputs_; }

  /// Passes the available output to `on_line`.
  void read_output(const OutputLine& on_line);
  /// Returns true once, when the process has ended. Before it returns true, it kills the process group and passes on
  /// the remaining output.
  bool reap(const OutputLine& on_line);
  void send(int signal) const;

  int exit_code() const;    ///< exit code of the process, or 128 + the number of the signal that killed it
  std::string how() const;  ///< for example "ended with exit code 3"
  std::vector<std::string> last_lines() const { return {last_lines_.begin(), last_lines_.end()}; }

 private:
  void take(size_t output, std::string_view bytes, const OutputLine& on_line);
  void line(size_t output, std::string_view text, const OutputLine& on_line);

  const int rank_;
  pid_t pid_ = -1;
  std::optional<int> status_;
  std::array<int, 2> outputs_ = {-1, -1};
  std::array<std::string, 2> open_lines_;
  std::deque<std::string> last_lines_;
};

}  // namespace bellows::comm
