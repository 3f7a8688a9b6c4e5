#pragma once

#include <thread>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/serve/batch/request_runner.h"
#include "bellows/serve/batch_execution.h"
#include "bellows/serve/request_queue.h"

namespace bellows::serve {

/// Runs the requests for one model on its instances.
///
/// Each instance has its own thread, which takes batches from a common queue. One more thread answers requests that time
/// out or are cancelled while they wait.
/// Threads: submit() may be called from any thread. `done` of a request is called on a thread of the scheduler, without a
///          lock
class Scheduler final : public RequestRunner {
 public:
  /// Params: instances – one function for each instance; a function is never called on two threads at the same time
  /// Throws: c10::Error if the system cannot start a thread
  Scheduler(std::vector<RunModel> instances, QueueOptions options, std::shared_ptr<ModelStatistics> statistics);
  /// Drains the queue.
  ~Scheduler() override;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  Submitted submit(PendingRequest& request) override;
  void drain() override;

 private:
  void serve_instance(const RunModel& run);
  void drop_requests();
  void answer_dropped(std::vector<PendingRequest> dropped);

  const bool batched_;
  const std::shared_ptr<const Padding> padding_;
  const std::shared_ptr<ModelStatistics> statistics_;
  Mutex mutex_;
  ConditionVariable changed_;       ///< for instances: the queue has changed
  ConditionVariable drop_changed_;  ///< for the thread that drops requests
  RequestQueue queue_ BELLOWS_GUARDED_BY(mutex_);
  bool draining_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool instances_ended_ BELLOWS_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::vector<std::thread> threads_ BELLOWS_GUARDED_BY(join_mutex_){};
  std::thread dropper_ BELLOWS_GUARDED_BY(join_mutex_){};
};

}  // namespace bellows::serve
