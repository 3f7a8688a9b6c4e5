#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

namespace bellows {

/// A wait ended because of request_stop(). Not a c10::Error: code that falls back to something else after an error must
/// not do so after a stop.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Asks every wait of the process to end soon: for servers, compilers and other ranks. What is under way and only
/// computes is not affected; a training run is stopped by Trainer::request_stop().
/// Threads: any; may be called from a signal handler
void request_stop() noexcept;
/// True from request_stop() until clear_stop(). May be called from a signal handler.
bool stop_requested() noexcept;
/// Waits are as usual again: for the next command in the same process.
void clear_stop() noexcept;
/// Throws: Stopped – "stopped on request while <what>", after request_stop()
void throw_if_stopped(const std::string& what);

/// One wait for something outside the process. Logs once what it waits for when that takes ten seconds.
/// Threads: one owner
class LongWait {
 public:
  using Clock = std::chrono::steady_clock;
  /// Params: what – completes "waiting for …": "rank 3"
  ///         note – what else to say, such as when the wait gives up; may be empty
  explicit LongWait(std::string what, std::string note = {}) : what_(std::move(what)), note_(std::move(note)) {}

  /// To be called at least ten times a second while the wait lasts.
  /// Throws: Stopped – after request_stop()
  void check();
  /// Logs what is waited for if it is time to; check() does so, too.
  void note();
  /// Something came: the ten seconds begin again.
  void restart() { begin_ = Clock::now(), said_ = false; }
  /// Waits, and checks meanwhile.
  void sleep(std::chrono::milliseconds time);

 private:
  std::string what_, note_;
  Clock::time_point begin_ = Clock::now();
  bool said_ = false;
};

}  // namespace bellows
