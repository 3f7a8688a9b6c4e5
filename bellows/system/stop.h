#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

namespace bellows {

/// Thrown by a wait that request_stop() ended. It is not a c10::Error, because code that handles errors with a fallback
/// must not do so after a stop.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Asks all waits of the process for servers, compilers and other ranks to end soon. Running computations continue; to
/// stop a training run, call Trainer::request_stop().
/// Threads: any; may be called from a signal handler
void request_stop() noexcept;
/// True from request_stop() until clear_stop(). May be called from a signal handler.
bool stop_requested() noexcept;
/// Allows waits again, for the next command in the same process.
void clear_stop() noexcept;
/// Throws: Stopped ("stopped on request while WHAT") after request_stop()
void throw_if_stopped(const std::string& what);

/// A wait for something outside the process. After ten seconds, it logs once what it waits for.
/// Threads: not thread-safe
class LongWait {
 public:
  using Clock = std::chrono::steady_clock;
  /// Params: what – completes the message "waiting for …": "rank 3"
  ///         note – additional text, such as when the wait times out; may be empty
  explicit LongWait(std::string what, std::string note = {}) : what_(std::move(what)), note_(std::move(note)) {}

  /// Call it at least ten times a second during the wait.
  /// Throws: Stopped after request_stop()
  void check();
  /// Logs what it waits for, if ten seconds have passed. check() does so, too.
  void note();
  /// Restarts the ten seconds, because there was progress.
  void restart() { begin_ = Clock::now(), said_ = false; }
  /// Sleeps and calls check() meanwhile.
  void sleep(std::chrono::milliseconds time);

 private:
  std::string what_, note_;
  Clock::time_point begin_ = Clock::now();
  bool said_ = false;
};

}  // namespace bellows
