#pragma once

#include "bellows/serve/request_queue.h"

namespace bellows::serve {

/// Answers the requests for one version of a model.
/// Threads: submit() may be called from any thread. `done` of a request is called without a lock
class RequestRunner {
 public:
  enum class Submitted { queued, full, draining };

  RequestRunner() = default;
  virtual ~RequestRunner() = default;
  RequestRunner(const RequestRunner&) = delete;
  RequestRunner& operator=(const RequestRunner&) = delete;

  /// Accepts a request. It never waits for a model.
  /// Returns: `full` or `draining` if the request was not accepted. It is unchanged then, and `done` is not called
  /// Throws:  RequestError if the request is invalid; `done` is not called then
  virtual Submitted submit(PendingRequest& request) = 0;

  /// Accepts no more requests, waits until all accepted ones are answered, and ends the threads.
  /// Threads: must not be called from `done`
  virtual void drain() = 0;
};

}  // namespace bellows::serve
