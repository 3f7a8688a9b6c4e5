#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "bellows/system/stop.h"

namespace bellows::cli {

namespace {

// What the handler touches: plain addresses, and atomics that need no lock.
std::atomic<int> first_signal{0};
void (*stop_action)(void*) = nullptr;
void* stop_context = nullptr;
const char* stop_words = "";
struct sigaction earlier_int, earlier_term;

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // nowhere left to complain
}

void on_signal(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
  say("\nbellows: stopping: ");
  say(stop_words);
  say(" (once more to leave at once)\n");
  if (stop_action) return stop_action(stop_context);
  request_stop();
}

}  // namespace

Interrupt::Interrupt(const char* what, void (*action)(void*), void* context) {
  first_signal = 0;
  clear_stop();
  stop_words = what;
  stop_action = action;
  stop_context = context;
  struct sigaction handler {};
  handler.sa_handler = on_signal;
  handler.sa_flags = SA_RESTART;
  sigemptyset(&handler.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction& before = signal == SIGINT ? earlier_int : earlier_term;
    sigaction(signal, nullptr, &before);
    // A job in the background was started with SIGINT ignored: what is typed at the terminal is not for it.
    if (before.sa_handler != SIG_IGN) sigaction(signal, &handler, nullptr);
  }
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &earlier_int, nullptr);
  sigaction(SIGTERM, &earlier_term, nullptr);
}

bool Interrupt::requested() {
  return first_signal != 0;
}

int Interrupt::exit_code() {
  return requested() ? 128 + first_signal : 0;
}

}  // namespace bellows::cli
