#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "bellows/system/stop.h"
#include "bellows/system/trace_request.h"

namespace bellows::cli {

namespace {

// The handler uses only plain addresses and lock-free atomics.
std::atomic<int> first_signal{0};
void (*stop_action)(void*) = nullptr;
void* stop_context = nullptr;
const char* stop_words = "";
struct sigaction earlier_int, earlier_term, earlier_trace;

constexpr int64_t traced_steps = 10;

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // there is no other place to report it
}

void on_signal(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
  say("\nbellows: stopping: ");
  say(stop_words);
  say(". A second signal exits immediately.\n");
  if (stop_action) return stop_action(stop_context);
  request_stop();
}

void on_trace_signal(int, siginfo_t* info, void*) {
  const int sent = info && info->si_code == SI_QUEUE ? info->si_value.sival_int : 0;
  request_trace(sent > 0 ? sent : traced_steps);
}

void end_process(int signal) {
  say("\nbellows: stopping\n");
  _exit(128 + signal);
}

/// Sets a handler, unless the signal is ignored: shells start background jobs with SIGINT ignored.
/// Returns: the previous action
struct sigaction handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  return before;
}

}  // namespace

void end_on_signals() {
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, end_process);
}

Interrupt::Interrupt(const char* what, void (*action)(void*), void* context) {
  first_signal = 0;
  clear_stop();
  stop_words = what;
  stop_action = action;
  stop_context = context;
  earlier_int = handle(SIGINT, on_signal);
  earlier_term = handle(SIGTERM, on_signal);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &earlier_int, nullptr);
  sigaction(SIGTERM, &earlier_term, nullptr);
}

TraceSignal::TraceSignal() {
  struct sigaction action {};
  action.sa_sigaction = on_trace_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR2, &action, &earlier_trace);
}

TraceSignal::~TraceSignal() {
  sigaction(SIGUSR2, &earlier_trace, nullptr);
}

bool Interrupt::requested() {
  return first_signal != 0;
}

int Interrupt::exit_code() {
  return requested() ? 128 + first_signal : 0;
}

}  // namespace bellows::cli
