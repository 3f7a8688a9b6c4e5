#pragma once

#include <span>
#include <thread>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/serve/batch/request_runner.h"
#include "bellows/serve/batch_execution.h"
#include "bellows/serve/sequence/sequence_queue.h"

namespace bellows::serve {

/// Runs sequences of requests on the instances of a model (Triton's sequence batcher with the strategy `direct`).
///
/// Row i of a batch is slot i of the instance. Rows of slots without a request contain zeros, and the control READY is
/// false for them. A model receives its inputs, then the controls, then the states, and returns its outputs, then the
/// states for the next request.
class SequenceScheduler final : public RequestRunner {
 public:
  /// Params: instances – one function for each instance; a function is never called on two threads at the same time
  /// Throws: c10::Error if the system cannot start a thread
  SequenceScheduler(std::vector<RunModel> instances, SequenceOptions options,
                    std::shared_ptr<ModelStatistics> statistics);
  ~SequenceScheduler() override;

  Submitted submit(PendingRequest& request) override;
  /// Sequences end, because no further requests can follow.
  void drain() override;

 private:
  void serve_instance(size_t instance, const RunModel& run);
  /// Runs a batch and answers its requests. If it fails, each row is tried alone.
  void run_batch(size_t instance, const RunModel& run, std::span<SequenceRow> batch);
  void run_rows(size_t instance, const RunModel& run, std::span<SequenceRow> batch);
  std::vector<at::Tensor> inputs_of(std::span<const SequenceRow> batch, int64_t rows) const;
  at::Tensor control_of(const SequenceControl& control, std::span<const SequenceRow> batch, int64_t rows) const;
  void finish(size_t instance, std::span<SequenceRow> batch);
  void answer_cancelled(std::vector<PendingRequest> cancelled);

  const SequenceOptions options_;
  const std::shared_ptr<ModelStatistics> statistics_;
  Mutex mutex_;
  ConditionVariable changed_;
  SequenceQueue queue_ BELLOWS_GUARDED_BY(mutex_);
  bool draining_ BELLOWS_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::vector<std::thread> threads_ BELLOWS_GUARDED_BY(join_mutex_){};
};

}  // namespace bellows::serve
