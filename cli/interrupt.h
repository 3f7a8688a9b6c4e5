#pragma once

namespace bellows::cli {

/// From now on, SIGINT and SIGTERM end the process with a message and the exit code 128 + the number of the signal.
/// While an Interrupt object exists, it handles the signals instead. Signals that are ignored stay ignored.
void end_on_signals();

/// While the object exists, the first SIGINT or SIGTERM requests an orderly stop, and the second one ends the process
/// immediately.
/// Threads: at most one object may exist in the process at a time
class Interrupt {
 public:
  /// Params: what    – text that is printed to standard error at the first signal, such as "saving a checkpoint"
  ///         action  – function that the signal handler calls at the first signal, instead of request_stop(); it must
  ///                   be async-signal-safe
  ///         context – argument for `action`
  explicit Interrupt(const char* what, void (*action)(void*) = nullptr, void* context = nullptr);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Returns whether a signal has requested a stop.
  static bool requested();
  /// Returns 128 + the number of the signal, or 0 if there was no signal.
  static int exit_code();
};

/// While the object exists, SIGUSR2 requests a trace of the next training steps (bellows/system/trace_request.h). The
/// number of steps is the value that was sent with the signal (`kill -q N -USR2 PID`), or 10.
/// Threads: at most one object may exist in the process at a time
class TraceSignal {
 public:
  TraceSignal();
  ~TraceSignal();
  TraceSignal(const TraceSignal&) = delete;
  TraceSignal& operator=(const TraceSignal&) = delete;
};

}  // namespace bellows::cli
