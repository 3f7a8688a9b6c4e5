#include "bellows/ladder/child_process.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/system/stop.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

struct Question {
  JobRequest request = JobRequest::made;
  int64_t argument = 0;
};

/// The part of an answer that has a fixed size. The text follows.
struct AnswerHead {
  int64_t integer = 0;
  double number = 0;
  StepShares shares;
  int64_t text_bytes = 0;
  JobFailure failure = JobFailure::none;
};

JobFailure failure_of(const std::exception& error) {
  if (dynamic_cast<const RecipeError*>(&error)) return JobFailure::recipe;
  return dynamic_cast<const c10::ValueError*>(&error) ? JobFailure::value : JobFailure::other;
}

/// Returns false if the other process has ended.
bool send_all(int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

/// Waits until the other process has answered or ended. Throws: Stopped; c10::Error if waiting fails
void await_answer(int fd) {
  pollfd end{fd, POLLIN, 0};
  for (int ready = 0; ready <= 0;) {
    throw_if_stopped("measuring");
    ready = poll(&end, 1, 50);
    TORCH_CHECK(ready >= 0 || errno == EINTR, "ladder: cannot wait for a child process: ", errno_message(errno), ".");
  }
}

JobAnswer answer_of(LadderJob& job, const Question& question) {
  switch (question.request) {
    case JobRequest::made:
      return {};
    case JobRequest::run_steps:
      return {.integer = job.run_steps(question.argument)};
    case JobRequest::settle:
      return {.integer = job.settle()};
    case JobRequest::steps_per_epoch:
      return {.integer = job.steps_per_epoch()};
    case JobRequest::samples_per_epoch:
      return {.integer = job.samples_per_epoch()};
    case JobRequest::evaluate:
      return {.number = job.evaluate()};
    case JobRequest::take_peak_bytes:
      return {.integer = job.take_peak_bytes()};
    case JobRequest::phases:
      return {.shares = job.phases()};
    case JobRequest::bottleneck:
      return {.text = job.bottleneck()};
    case JobRequest::model_bytes:
      return {.integer = job.model_bytes()};
    case JobRequest::output_difference:
      return {.number = job.output_difference()};
    case JobRequest::remark:
      return {.text = job.remark()};
    case JobRequest::sent_bytes:
      return {.integer = job.sent_bytes()};
  }
  return {};
}

/// The main loop of the child.
void serve(int fd, const ChildProcess::Make& make) {
  std::unique_ptr<LadderJob> job;
  Question question;
  while (receive_all(fd, &question, sizeof question)) {
    JobAnswer reply;
    try {
      if (!job) job = make();
      reply = answer_of(*job, question);
    } catch (const std::exception& error) {
      reply = {.text = user_message(error), .failure = failure_of(error)};
    }
    const AnswerHead head{.integer = reply.integer,
                          .number = reply.number,
                          .shares = reply.shares,
                          .text_bytes = static_cast<int64_t>(reply.text.size()),
                          .failure = reply.failure};
    if (!send_all(fd, &head, sizeof head) || !send_all(fd, reply.text.data(), reply.text.size())) return;
  }
}

}  // namespace

void throw_failure(const JobAnswer& answer) {
  check_recipe(answer.failure != JobFailure::recipe, answer.text);
  TORCH_CHECK_VALUE(answer.failure != JobFailure::value, answer.text);
  TORCH_CHECK(answer.failure == JobFailure::none, answer.text);
}

ChildProcess::ChildProcess(const Make& make) {
  int ends[2];
  TORCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
              "ladder: cannot connect to a child process: ", errno_message(errno), ".");
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    std::signal(SIGINT, SIG_IGN);  // the terminal sends it to both processes; the parent decides when to stop
    close(ends[0]);
    serve(ends[1], make);
    _exit(0);
  }
  const int failed = errno;
  close(ends[1]);
  socket_ = ends[0];
  if (process_ > 0) return;
  close(socket_);
  TORCH_CHECK(false, "ladder: cannot start a child process: ", errno_message(failed), ".");
}

void ChildProcess::ask(JobRequest request, int64_t argument) const {
  if (process_ < 0) return;
  const Question question{request, argument};
  send_all(socket_, &question, sizeof question);
}

JobAnswer ChildProcess::answer() const {
  AnswerHead head;
  std::string text;
  bool complete = process_ >= 0;
  if (complete) {
    await_answer(socket_);
    complete = receive_all(socket_, &head, sizeof head);
  }
  if (complete) {
    text.resize(static_cast<size_t>(head.text_bytes));
    complete = receive_all(socket_, text.data(), text.size());
  }
  if (complete) {
    return {.integer = head.integer,
            .number = head.number,
            .shares = head.shares,
            .text = std::move(text),
            .failure = head.failure};
  }
  return {.text = "ladder: the process of a training run ended unexpectedly. It may have run out of memory.",
          .failure = JobFailure::ended};
}

/// The child has nothing to clean up, and its remaining work is not needed.
void ChildProcess::end() {
  if (process_ < 0) return;
  close(socket_);
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
  process_ = -1, socket_ = -1;
}

bool can_fork() {
  std::error_code failed;
  int64_t threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    threads += entry.path().empty() ? 0 : 1;
  }
  return threads == 1;
}

}  // namespace bellows::train
