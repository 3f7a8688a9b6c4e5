#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

namespace bellows {

/// Thrown by a wait that request_stop() interrupts. The class does not derive from c10::Error, because code that
/// handles errors with a fallback must not handle a stop in the same way.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Interrupts all waits of the process for servers, compilers and other ranks. Running computations continue. To stop a
/// training run, call Trainer::request_stop().
/// Threads: may be called from any thread and from a signal handler
void request_stop() noexcept;
/// Returns true after request_stop(), until clear_stop() is called. A signal handler may call this function.
bool stop_requested() noexcept;
/// Clears the request, so that the next command in the same process can wait again.
void clear_stop() noexcept;
/// Throws: Stopped ("stopped on request while WHAT") after request_stop()
void throw_if_stopped(const std::string& what);

/// A wait for something outside the process. If the wait takes ten seconds, a message is logged once.
/// Threads: not thread-safe
class LongWait {
 public:
  using Clock = std::chrono::steady_clock;
  /// Params: what – completes the message "waiting for …", such as "rank 3"
  ///         note – additional text of the message, such as the time limit of the wait; may be empty
  explicit LongWait(std::string what, std::string note = {}) : what_(std::move(what)), note_(std::move(note)) {}

  /// Call this function at least ten times per second during the wait.
  /// Throws: Stopped after request_stop()
  void check();
  /// Logs the message if the wait has taken ten seconds and nothing was logged yet. check() calls this function, too.
  void note();
  /// Restarts the period of ten seconds. Call this function whenever there is progress.
  void restart() { begin_ = Clock::now(), said_ = false; }
  /// Sleeps for `time`, and repeatedly calls check().
  void sleep(std::chrono::milliseconds time);

 private:
  std::string what_, note_;
  Clock::time_point begin_ = Clock::now();
  bool said_ = false;
};

}  // namespace bellows
