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

/// Kills process groups when the process that made it ends in whatever way: a small helper process that waits for that.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void add(pid_t group);
  void remove(pid_t group);
  /// Starts another helper process if this one was killed, and logs a warning. Call it a few times a second.
  /// Throws: c10::Error – the system starts no further process
  void replace_if_lost();

 private:
  void start();
  void tell(pid_t message) const;

  int pipe_ = -1;
  pid_t pid_ = -1;  ///< -1: lost, and not replaced
  std::set<pid_t> groups_;
};

/// Signals of this thread as a file descriptor.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_; }
  /// The next one, or 0.
  int next() const;
  const sigset_t& mask_before() const { return before_; }

 private:
  int fd_ = -1;
  sigset_t before_;
};

/// One rank: a process in a process group of its own, its output in lines.
class RankProcess {
 public:
  /// Throws: c10::ValueError – there is no such program, or it cannot be executed
  RankProcess(int rank, const std::vector<std::string>& command, const std::vector<std::string>& environment,
              const Signals& signals);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool running() const { return !status_; }
  const std::array<int, 2>& outputs() const { return outputs_; }  ///< standard output and error; -1 when closed

  /// Passes on what is there to read.
  void read_output(const OutputLine& on_line);
  /// Has it ended? Then its group is killed, and what it wrote last is passed on. True once.
  bool reap(const OutputLine& on_line);
  void send(int signal) const;

  int exit_code() const;    ///< its own, or 128 + signal
  std::string how() const;  ///< "ended with exit code 3"
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
