#pragma once

namespace bellows::cli {

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
