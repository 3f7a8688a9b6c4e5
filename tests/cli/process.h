#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace bellows::cli {

/// What a finished process left.
struct Outcome {
  int exit_code = -1;  ///< negative signal number when a signal ended it
  std::string out, err;
  int64_t peak_bytes = 0;  ///< the most memory that it had at a time, as the system counts it
};

struct Launch {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< "NAME=value", over this process's own and OMP_NUM_THREADS=1
  bool terminal = false;                 ///< standard output and error on a pseudo-terminal: both arrive in `out`
  std::string folder;                    ///< working folder; the repository when empty
  std::vector<std::string> prefix;       ///< a command that starts the binary: "ip", "netns", "exec", …
  uint64_t file_limit = 0;               ///< bytes that a file may have (RLIMIT_FSIZE); 0: as many as it likes
  int (*copy)(int argc, char** argv) = nullptr;  ///< called in a copy of this process, instead of the binary
};

/// The real binary as a child, unless Launch::copy is set. Ends it when destroyed.
class Process {
 public:
  explicit Process(const Launch& launch);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits until the process catches or blocks `signal`. False: it ended, or the time is up, before.
  bool wait_for_handler(int signal = SIGTERM, double seconds = 120);
  /// Of the pseudo-terminal.
  void resize(int columns) const;
  /// Reads until `done` is true of what was written so far. False: it ended, or the time is up, before.
  bool wait_until(const std::function<bool(const Outcome& so_far)>& done, double seconds = 120);
  /// Waits for the end. Kills it, and fails the test, when the time is up.
  Outcome finish(double seconds = 240);

 private:
  bool pump(double seconds);

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Outcome outcome_;
};

Outcome run_bellows(std::vector<std::string> arguments, std::vector<std::string> environment = {});

/// A folder that is gone with the object.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// data/digits of the repository.
std::string digits();

}  // namespace bellows::cli
