#pragma once

namespace bellows::cli {

/// Makes SIGINT and SIGTERM end the process with a message and the exit code 128 + signal, outside of the work that an
/// Interrupt guards. Ignored signals stay ignored.
void end_on_signals();

/// While the object lives, the first SIGINT or SIGTERM requests an orderly stop, and the second one ends the process
/// immediately.
/// Threads: one object at a time in the process
class Interrupt {
 public:
  /// Params: action – called by the signal handler at the first signal instead of request_stop(); must be
  ///                  async-signal-safe
  ///         what – printed to standard error at the first signal: "saving a checkpoint"
  explicit Interrupt(const char* what, void (*action)(void*) = nullptr, void* context = nullptr);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool requested();
  /// 128 + the signal; 0 if there was none.
  static int exit_code();
};

}  // namespace bellows::cli
