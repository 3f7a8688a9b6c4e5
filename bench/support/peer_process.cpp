#include "bench/support/peer_process.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <sstream>

#include "bellows/core/error.h"

namespace bellows::bench {

namespace {

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void become_peer(char* const* arguments, int input, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before prctl
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  execvp(arguments[0], arguments);
  _exit(127);
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& command, double start_timeout_s) {
  TORCH_CHECK_VALUE(!command.empty(), "PeerProcess: expected a command, got none.");
  for (const std::string& word : command) name_ += (name_.empty() ? "" : " ") + word;
  std::signal(SIGPIPE, SIG_IGN);
  setenv("OMP_NUM_THREADS", std::to_string(at::get_num_threads()).c_str(), 1);
  setenv("GOMP_SPINCOUNT", "20000", 0);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int down[2], up[2];
  TORCH_CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0,
              "PeerProcess: cannot create a pipe: ", errno_message(errno));
  const pid_t parent = getpid();
  pid_ = fork();
  TORCH_CHECK(pid_ >= 0, "PeerProcess: fork failed: ", errno_message(errno));
  if (pid_ == 0) become_peer(arguments.data(), down[0], up[1], parent);
  close(down[0]);
  close(up[1]);
  to_child_ = down[1];
  from_child_ = up[0];
  try {
    const std::string first = read_line(start_timeout_s, "\"ready\"");
    TORCH_CHECK(first == "ready", "PeerProcess: expected the line \"ready\", got \"", first, "\" (", name_, ")");
  } catch (...) {
    kill_child();
    throw;
  }
}

PeerProcess::~PeerProcess() {
  // A child that reads commands ends when its input ends, and so do the ranks that it started.
  if (to_child_ >= 0) close(to_child_);
  to_child_ = -1;
  for (int i = 0; i < 100 && pid_ > 0; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) pid_ = -1;
    if (pid_ > 0) usleep(20'000);
  }
  kill_child();
}

void PeerProcess::kill_child() {
  if (to_child_ >= 0) close(to_child_);
  if (from_child_ >= 0) close(from_child_);
  to_child_ = from_child_ = -1;
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_ = -1;
}

std::string PeerProcess::read_line(double timeout_s, std::string_view waiting_for) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  for (;;) {
    const size_t newline = pending_.find('\n');
    if (newline != std::string::npos) {
      const std::string line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd waiting{from_child_, POLLIN, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) kill_child();
    TORCH_CHECK(ready > 0, "PeerProcess: no answer to ", waiting_for, " within ", timeout_s,
                " s, so the process was stopped (", name_, ")");
    char buffer[4096];
    const ssize_t got = read(from_child_, buffer, sizeof buffer);
    TORCH_CHECK(got > 0, "PeerProcess: the process ended before it answered ", waiting_for, " (", name_,
                "). See its messages above.");
    pending_.append(buffer, static_cast<size_t>(got));
  }
}

std::string PeerProcess::ask(std::string_view line, double timeout_s) {
  TORCH_CHECK(to_child_ >= 0, "PeerProcess: the process has ended (", name_, ")");
  const std::string text = std::string(line) + "\n";
  TORCH_CHECK(write(to_child_, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
              "PeerProcess: cannot send \"", line, "\": ", errno_message(errno), " (", name_, ")");
  return read_line(timeout_s, line);
}

std::vector<double> PeerProcess::ask_numbers(std::string_view line, double timeout_s) {
  const std::string answer = ask(line, timeout_s);
  std::istringstream words(answer);
  std::vector<double> numbers;
  for (double number = 0; words >> number;) numbers.push_back(number);
  TORCH_CHECK(words.eof() && !numbers.empty(), "PeerProcess: expected numbers for \"", line, "\", got \"", answer,
              "\" (", name_, ")");
  return numbers;
}

double PeerProcess::run(int64_t n) {
  return ask_numbers("run " + std::to_string(n), 600).at(0);
}

Contestant PeerProcess::as_contestant(std::string name) {
  return {std::move(name), [this](int64_t n) { return run(n); }};
}

}  // namespace bellows::bench
