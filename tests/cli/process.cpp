#include "process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace bellows::cli {

namespace {

using Clock = std::chrono::steady_clock;

/// In the child.
void exec_bellows(const Launch& launch) {
  setenv("OMP_NUM_THREADS", "1", 1);  // small models; and others may want the machine, too
  for (const std::string& variable : launch.environment) putenv(strdup(variable.c_str()));
  const rlimit limit{launch.file_limit, launch.file_limit};
  if (launch.file_limit > 0) setrlimit(RLIMIT_FSIZE, &limit);
  const std::string folder = launch.folder.empty() ? BELLOWS_SOURCE_DIR : launch.folder;
  if (chdir(folder.c_str()) != 0) _exit(127);
  std::vector<char*> argv;
  for (const std::string& word : launch.prefix) argv.push_back(strdup(word.c_str()));
  argv.push_back(strdup(BELLOWS_BIN_DIR "/bellows"));
  for (const std::string& argument : launch.arguments) argv.push_back(strdup(argument.c_str()));
  const int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  if (launch.copy) {
    const int exit_code = launch.copy(argc, argv.data());
    std::fflush(nullptr);
    _exit(exit_code);
  }
  execvp(argv[0], argv.data());
  _exit(127);
}

bool read_some(int& fd, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count > 0) {
    text.append(buffer.data(), static_cast<size_t>(count));
    return true;
  }
  close(fd);
  fd = -1;
  return false;
}

}  // namespace

Process::Process(const Launch& launch) {
  std::fflush(nullptr);  // a copy of this process must not write the buffers, too
  if (launch.terminal) {
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&out_, nullptr, nullptr, &size);
    if (pid_ == 0) exec_bellows(launch);
    return;
  }
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    exec_bellows(launch);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) const {
  kill(pid_, number);
}

bool Process::wait_for_handler(int signal, double seconds) {
  const std::string path = "/proc/" + std::to_string(pid_) + "/status";
  return wait_until(
      [&](const Outcome&) {
        std::ifstream status(path);
        for (std::string line; std::getline(status, line);) {
          const bool mask = line.starts_with("SigCgt:") || line.starts_with("SigBlk:");
          if (mask && (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1)) return true;
        }
        return false;
      },
      seconds);
}

void Process::resize(int columns) const {
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  if (ioctl(out_, TIOCSWINSZ, &size) != 0) throw std::runtime_error("TIOCSWINSZ");
}

/// Waits for output and takes it. False when both ends are closed.
bool Process::pump(double seconds) {
  std::array<pollfd, 2> ends = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};  // negative ones are left out
  if (out_ < 0 && err_ < 0) return false;
  if (poll(ends.data(), ends.size(), static_cast<int>(1000 * seconds)) <= 0) return true;
  if (ends[0].revents) read_some(out_, outcome_.out);
  if (ends[1].revents) read_some(err_, outcome_.err);
  return true;
}

bool Process::wait_until(const std::function<bool(const Outcome&)>& done, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!done(outcome_)) {
    if (Clock::now() > end || !pump(0.05)) return done(outcome_);
  }
  return true;
}

Outcome Process::finish(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end && pump(0.1)) {
  }
  if (Clock::now() >= end) {
    ADD_FAILURE() << "bellows did not end within " << seconds << " s. So far:\n" << outcome_.out << outcome_.err;
    kill(pid_, SIGKILL);
  }
  int status = 0;
  rusage used{};
  wait4(pid_, &status, 0, &used);
  pid_ = -1;
  outcome_.peak_bytes = int64_t{used.ru_maxrss} << 10;
  outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome_;
}

Outcome run_bellows(std::vector<std::string> arguments, std::vector<std::string> environment) {
  return Process({.arguments = std::move(arguments), .environment = std::move(environment)}).finish();
}

Scratch::Scratch() {
  std::string name = (std::filesystem::temp_directory_path() / "bellows-cli-XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
  path_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
  std::filesystem::remove_all(path_, ignored);
}

std::string digits() {
  return BELLOWS_SOURCE_DIR "/data/digits";
}

}  // namespace bellows::cli
