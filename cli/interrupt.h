#pragma once

namespace bellows::cli {

/// From now on SIGINT and SIGTERM end the process with a message and the exit code 128 + signal, also before and after the work
/// that an Interrupt guards. Signals that are ignored stay ignored.
void end_on_signals();

/// While it lives, the first SIGINT or SIGTERM asks for an orderly stop, the second ends the process at once.
/// Threads: one at a time in the process
class Interrupt {
 public:
  /// Params: action – called from the signal handler at the first signal, instead of request_stop(): only what is safe there
  ///         what – said on standard error at the first signal: "saving a checkpoint"
  explicit Interrupt(const char* what, void (*action)(void*) = nullptr, void* context = nullptr);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool requested();
  /// 128 + the signal; 0 when there was none.
  static int exit_code();
};

}  // namespace bellows::cli
