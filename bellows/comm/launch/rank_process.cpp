#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "bellows/comm/launch/rank_process.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/no_sigpipe.h"
#include "bellows/system/pipe.h"

namespace bellows::comm {

namespace {

constexpr size_t kept_lines = 50, longest_line = 1 << 20;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Describes a status of waitpid(): "ended with exit code 3".
std::string how_ended(int status) {
  if (WIFEXITED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

/// Runs in the child process. Only async-signal-safe calls are allowed between fork and exec.
[[noreturn]] void become(char** argv, char** environment, const sigset_t& mask, pid_t launcher, const int* outputs,
                         int error_pipe) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher was killed before prctl()
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(outputs[0], STDOUT_FILENO);
  dup2(outputs[1], STDERR_FILENO);
  for (const int ignored : {SIGXFSZ, SIGPIPE}) signal(ignored, SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execvpe(argv[0], argv, environment);
  const int reason = errno;
  if (write(error_pipe, &reason, sizeof reason) < 0) _exit(126);
  _exit(127);
}

/// The main loop of the helper process. The pipe sends process groups to add (positive) or remove (negative). When it
/// closes, the helper kills the remaining groups. It closes all other inherited descriptors, because a replacement
/// helper would otherwise keep connections and pipes of the job open.
[[noreturn]] void stand_guard(int pipe) {
  setsid();
  constexpr int from = STDERR_FILENO + 1;
  dup2(pipe, from);
  close_range(from + 1, ~0u, 0);
  const int null = open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, standard);
  std::set<pid_t> groups;
  pid_t message = 0;
  while (read(from, &message, sizeof message) == sizeof message) {
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  start();
}

Guard::~Guard() {
  // Kills the groups here, because the helper cannot do so if it is stopped.
  for (const pid_t group : groups_) kill(-group, SIGKILL);
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(pipe_);
}

void Guard::start() {
  Pipe pipe("launch");
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "launch: cannot start the helper process that ends the ranks if the launcher is killed: ",
              errno_message(errno), ". Raise the limit of processes (ulimit -u), or end other programs.");
  if (child == 0) stand_guard(pipe.read_end());
  pid_ = child;
  if (pipe_ >= 0) close(pipe_);
  pipe_ = pipe.take_write_end();
  for (const pid_t group : groups_) tell(group);
}

void Guard::add(pid_t group) {
  groups_.insert(group);
  tell(group);
}

void Guard::remove(pid_t group) {
  groups_.erase(group);
  tell(-group);
}

void Guard::replace_if_lost() {
  int status = 0;
  if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) != pid_) return;
  const pid_t lost = std::exchange(pid_, -1);
  start();
  log_warn("launch: the helper process that ends the ranks if the launcher is killed (pid ", lost, ") ",
           how_ended(status), ". Started another one.");
}

void Guard::tell(pid_t message) const {
  const NoSigpipe no_signal;
  // If the helper was killed, replace_if_lost() sends the groups to the next one.
  if (write(pipe_, &message, sizeof message) < 0) return;
}

Signals::Signals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    // A blocked signal is delivered even if it is ignored, such as SIGHUP under nohup.
    if (signal == SIGCHLD || action.sa_handler != SIG_IGN) sigaddset(&mask, signal);
  }
  pthread_sigmask(SIG_BLOCK, &mask, &before_);
  fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  TORCH_CHECK(fd_ >= 0, "launch: cannot create a signal descriptor: ", errno_message(errno), ".");
}

Signals::~Signals() {
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int Signals::next() const {
  signalfd_siginfo signal{};
  return read(fd_, &signal, sizeof signal) == sizeof signal ? static_cast<int>(signal.ssi_signo) : 0;
}

bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

RankProcess::RankProcess(int rank, const std::vector<std::string>& command, const std::vector<std::string>& environment,
                         const Signals& signals)
    : rank_(rank) {
  Pipe out("launch"), err("launch"), error("launch");
  const std::vector<char*> argv = pointers(command), variables = pointers(environment);
  const std::array<int, 2> ends = {out.write_end(), err.write_end()};
  const pid_t launcher = getpid();
  pid_ = fork();
  TORCH_CHECK(pid_ >= 0, "launch: cannot start a process for rank ", rank, ": ", errno_message(errno), ".");
  if (pid_ == 0)
    become(const_cast<char**>(argv.data()), const_cast<char**>(variables.data()), signals.mask_before(), launcher,
           ends.data(), error.write_end());
  setpgid(pid_, pid_);
  close(error.take_write_end());
  int reason = 0;
  if (read(error.read_end(), &reason, sizeof reason) == sizeof reason) {
    waitpid(pid_, nullptr, 0);
    TORCH_CHECK_VALUE(false, "launch: cannot start \"", command.front(), "\": ", errno_message(reason),
                      ". Expected a program: a path, or a name in PATH.");
  }
  outputs_ = {out.take_read_end(), err.take_read_end()};
  for (const int output : outputs_) fcntl(output, F_SETFL, O_NONBLOCK);
}

RankProcess::~RankProcess() {
  if (running()) {
    send(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int output : outputs_) {
    if (output >= 0) close(output);
  }
}

void RankProcess::line(size_t output, std::string_view text, const OutputLine& on_line) {
  last_lines_.emplace_back(text);
  if (last_lines_.size() > kept_lines) last_lines_.pop_front();
  on_line(rank_, output == 1, text);
}

void RankProcess::take(size_t output, std::string_view bytes, const OutputLine& on_line) {
  std::string& open = open_lines_[output];
  for (size_t end = 0; (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1)) {
    open += bytes.substr(0, end);
    line(output, open, on_line);
    open.clear();
  }
  open += bytes;
  if (open.size() < longest_line) return;
  line(output, open, on_line);
  open.clear();
}

void RankProcess::read_output(const OutputLine& on_line) {
  std::array<char, 65536> buffer;
  for (size_t output = 0; output < outputs_.size(); ++output) {
    int& fd = outputs_[output];
    ssize_t count = -1;
    // Limited, so that a rank that writes continuously does not block the others. The next call reads the rest.
    for (int turns = 0; fd >= 0 && turns < 16; ++turns) {
      if ((count = read(fd, buffer.data(), buffer.size())) <= 0) break;
      take(output, {buffer.data(), static_cast<size_t>(count)}, on_line);
    }
    if (fd < 0 || count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    close(std::exchange(fd, -1));
  }
}

bool RankProcess::reap(const OutputLine& on_line) {
  int status = 0;
  if (!running() || waitpid(pid_, &status, WNOHANG) != pid_) return false;
  kill(-pid_, SIGKILL);  // processes that the rank started and left behind
  read_output(on_line);
  for (size_t output = 0; output < outputs_.size(); ++output) {
    if (!open_lines_[output].empty()) line(output, open_lines_[output], on_line);
    if (outputs_[output] >= 0) close(std::exchange(outputs_[output], -1));
  }
  status_ = status;
  return true;
}

void RankProcess::send(int signal) const {
  if (running()) kill(-pid_, signal);
}

int RankProcess::exit_code() const {
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

std::string RankProcess::how() const {
  return how_ended(*status_);
}

}  // namespace bellows::comm
