#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bellows/ladder/ladder.h"

namespace bellows::train {

/// A question to a job in a child process: one value per function of LadderJob.
enum class JobRequest : int64_t {
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
  remark,
  sent_bytes
};

enum class JobFailure : int64_t { none, value, recipe, other, ended };  ///< the kind of error that the parent throws

struct JobAnswer {
  int64_t integer = 0;
  double number = 0;
  StepShares shares;
  std::string text;  ///< a text, or the message of an error
  JobFailure failure = JobFailure::none;
};

/// Throws the error of an answer, if there is one.
void throw_failure(const JobAnswer& answer);

/// A forked process that creates a LadderJob and answers questions about it. The destructor kills it.
/// Threads: not thread-safe. The process that forks must have only one thread
class ChildProcess {
 public:
  using Make = std::function<std::unique_ptr<LadderJob>()>;

  /// Forks. The first question creates the job.
  /// Throws: c10::Error if there cannot be another process
  explicit ChildProcess(const Make& make);
  ~ChildProcess() { end(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Sends a question. If the process has ended, the answer states this.
  void ask(JobRequest request, int64_t argument = 0) const;
  /// Waits for the answer to the last question. After an exception, call end(): the process may still send this answer.
  /// Throws: Stopped; c10::Error if waiting fails
  JobAnswer answer() const;
  /// A socket that becomes readable when there is an answer, or when the process has ended.
  int socket() const { return socket_; }
  /// Kills the process. Later answers state that it has ended.
  void end();

 private:
  pid_t process_ = -1;
  int socket_ = -1;
};

/// Whether this process has only one thread. A forked process has only the thread that forks, so thread pools would be
/// missing.
bool can_fork();

}  // namespace bellows::train
