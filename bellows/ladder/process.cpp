#include "bellows/ladder/process.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "bellows/core/error.h"
#include "bellows/ladder/job.h"
#include "bellows/system/stop.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

enum class Request : int64_t {
  made,
  run_steps,
  settle,
  steps_per_epoch,
  samples_per_epoch,
  evaluate,
  take_peak_bytes,
  phases,
  bottleneck,
  model_bytes,
  output_difference,
  remark
};

struct Question {
  Request request = Request::made;
  int64_t argument = 0;
};

enum class Failure : int64_t { none, value, recipe, other };  ///< the kind of error that the parent throws

Failure failure_of(const std::exception& error) {
  if (dynamic_cast<const RecipeError*>(&error)) return Failure::recipe;
  return dynamic_cast<const c10::ValueError*>(&error) ? Failure::value : Failure::other;
}

struct Answer {
  int64_t integer = 0;
  double number = 0;
  StepShares shares;
  int64_t text_bytes = 0;  ///< length of the text that follows: an answer or an error message
  Failure failure = Failure::none;
};

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

/// Waits until the other process has answered or ended. Throws: Stopped
void await_answer(int fd) {
  pollfd end{fd, POLLIN, 0};
  do {
    throw_if_stopped("measuring");
  } while (poll(&end, 1, 50) <= 0);
}

/// Params: text – receives the text of an answer
Answer answer(LadderJob& job, const Question& question, std::string& text) {
  switch (question.request) {
    case Request::made:
      return {};
    case Request::run_steps:
      return {.integer = job.run_steps(question.argument)};
    case Request::settle:
      return {.integer = job.settle()};
    case Request::steps_per_epoch:
      return {.integer = job.steps_per_epoch()};
    case Request::samples_per_epoch:
      return {.integer = job.samples_per_epoch()};
    case Request::evaluate:
      return {.number = job.evaluate()};
    case Request::take_peak_bytes:
      return {.integer = job.take_peak_bytes()};
    case Request::phases:
      return {.shares = job.phases()};
    case Request::bottleneck:
      text = job.bottleneck();
      return {};
    case Request::model_bytes:
      return {.integer = job.model_bytes()};
    case Request::output_difference:
      return {.number = job.output_difference()};
    case Request::remark:
      text = job.remark();
      return {};
  }
  return {};
}

/// The main loop of the child.
void serve(int fd, const std::function<std::unique_ptr<LadderJob>()>& make) {
  std::unique_ptr<LadderJob> job;
  Question question;
  while (receive_all(fd, &question, sizeof question)) {
    Answer reply;
    std::string text;
    try {
      if (!job) job = make();
      reply = answer(*job, question, text);
    } catch (const std::exception& error) {
      text = user_message(error);
      reply = {.failure = failure_of(error)};
    }
    reply.text_bytes = static_cast<int64_t>(text.size());
    if (!send_all(fd, &reply, sizeof reply) || !send_all(fd, text.data(), text.size())) return;
  }
}

class ChildJob final : public LadderJob {
 public:
  explicit ChildJob(const std::function<std::unique_ptr<LadderJob>()>& make) {
    int ends[2];
    TORCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
                "ladder: cannot connect to a child process: ", errno_message(errno), ".");
    const pid_t parent = getpid();
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      std::signal(SIGINT, SIG_IGN);  // the terminal sends it to both processes; the parent decides when to stop
      close(ends[0]);
      serve(ends[1], make);
      _exit(0);
    }
    close(ends[1]);
    fd_ = ends[0];
    if (child_ > 0) {
      try {
        ask({Request::made});
      } catch (...) {
        end();
        throw;
      }
      return;
    }
    close(fd_);
    TORCH_CHECK(false, "ladder: cannot start a child process: ", errno_message(errno), ".");
  }
  ~ChildJob() override { end(); }

  int64_t run_steps(int64_t n) override { return ask({Request::run_steps, n}).integer; }
  bool settle() override { return ask({Request::settle}).integer != 0; }
  int64_t steps_per_epoch() const override { return ask({Request::steps_per_epoch}).integer; }
  int64_t samples_per_epoch() const override { return ask({Request::samples_per_epoch}).integer; }
  double evaluate() override { return ask({Request::evaluate}).number; }
  int64_t take_peak_bytes() override { return ask({Request::take_peak_bytes}).integer; }
  StepShares phases() override { return ask({Request::phases}).shares; }
  std::string bottleneck() override { return text_of(Request::bottleneck); }
  int64_t model_bytes() override { return ask({Request::model_bytes}).integer; }
  double output_difference() override { return ask({Request::output_difference}).number; }
  std::string remark() override { return text_of(Request::remark); }

 private:
  std::string text_of(Request request) const {
    std::string text;
    ask({request}, &text);
    return text;
  }

  Answer ask(const Question& question, std::string* text = nullptr) const {
    Answer reply;
    const bool asked = send_all(fd_, &question, sizeof question);
    if (asked) await_answer(fd_);
    const bool answered = asked && receive_all(fd_, &reply, sizeof reply);
    std::string message(static_cast<size_t>(reply.text_bytes), '\0');
    TORCH_CHECK(answered && receive_all(fd_, message.data(), message.size()),
                "ladder: the process of a training run ended unexpectedly. It may have run out of memory.");
    check_recipe(reply.failure != Failure::recipe, message);
    TORCH_CHECK_VALUE(reply.failure != Failure::value, message);
    TORCH_CHECK(reply.failure == Failure::none, message);
    if (text) *text = std::move(message);
    return reply;
  }

  /// The child has nothing to clean up, and its remaining work is not needed.
  void end() const {
    close(fd_);
    kill(child_, SIGKILL);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  pid_t child_ = -1;
  int fd_ = -1;
};

/// A child process has only the thread that forks. Thread pools would be missing.
bool has_one_thread() {
  std::error_code failed;
  int64_t threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    threads += entry.path().empty() ? 0 : 1;
  }
  return threads == 1;
}

/// A job that only returns a text, as its bottleneck.
class TextJob final : public LadderJob {
 public:
  explicit TextJob(std::string text) : text_(std::move(text)) {}
  int64_t run_steps(int64_t) override { return 0; }
  int64_t steps_per_epoch() const override { return 0; }
  int64_t samples_per_epoch() const override { return 0; }
  double evaluate() override { return 0; }
  std::string bottleneck() override { return text_; }

 private:
  std::string text_;
};

// ---- serialization of candidates

using CandidateJson = nlohmann::ordered_json;

CandidateJson candidate_json(const PlanCandidate& candidate) {
  const MemoryOptions& m = candidate.measures;
  return {candidate.recipe.to_yaml(),
          static_cast<int>(m.precision),
          static_cast<int>(m.state),
          static_cast<int>(m.saved),
          m.accumulate,
          candidate.changes,
          candidate.techniques,
          candidate.time_factor,
          candidate.predicted_bytes,
          candidate.other_training};
}

PlanCandidate candidate_from(const CandidateJson& json) {
  PlanCandidate candidate{.recipe = Recipe::parse(json.at(0).get<std::string>()), .measures = {}};
  candidate.measures.precision = static_cast<MemoryOptions::Precision>(json.at(1).get<int>());
  candidate.measures.state = static_cast<MemoryOptions::State>(json.at(2).get<int>());
  candidate.measures.saved = static_cast<MemoryOptions::Saved>(json.at(3).get<int>());
  json.at(4).get_to(candidate.measures.accumulate);
  json.at(5).get_to(candidate.changes);
  json.at(6).get_to(candidate.techniques);
  json.at(7).get_to(candidate.time_factor);
  json.at(8).get_to(candidate.predicted_bytes);
  json.at(9).get_to(candidate.other_training);
  return candidate;
}

}  // namespace

std::unique_ptr<LadderJob> ladder_job_in_own_process(const Recipe& recipe, uint64_t seed) {
  const auto make = [recipe, seed] { return make_ladder_job(recipe, seed); };
  return recipe.device.starts_with("cpu") ? in_own_process(make) : make();
}

std::string text_of_own_process(const std::function<std::string()>& make) {
  return in_own_process([&] { return std::make_unique<TextJob>(make()); })->bottleneck();
}

std::unique_ptr<LadderJob> in_own_process(const std::function<std::unique_ptr<LadderJob>()>& make) {
  return has_one_thread() ? std::make_unique<ChildJob>(make) : make();
}

std::vector<PlanCandidate> candidates_in_own_process(const Recipe& recipe, int64_t length) {
  const std::string text = text_of_own_process([&] {
    CandidateJson json = CandidateJson::array();
    for (const PlanCandidate& candidate : plan_candidates(recipe, length)) json.push_back(candidate_json(candidate));
    return json.dump();
  });
  std::vector<PlanCandidate> result;
  for (const CandidateJson& json : CandidateJson::parse(text)) result.push_back(candidate_from(json));
  return result;
}

}  // namespace bellows::train
