#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/serve/batch/padding.h"
#include "bellows/serve/model_config.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/statistics.h"
#include "bellows/serve/text/bytes_tensor.h"

namespace bellows::serve {

/// The answer to a request: outputs or an error.
struct InferenceResult {
  std::vector<at::Tensor> outputs{};  ///< in the order of the model's outputs; undefined for BYTES tensors
  BytesTensors bytes{};
  std::optional<RequestError> error{};
  RequestTimes times{};
};

/// The sequence that a request belongs to.
struct SequenceFlags {
  uint64_t id = 0;  ///< 0: the request belongs to no sequence
  bool start = false, end = false;
};

/// A request that waits for a model.
struct PendingRequest {
  std::vector<at::Tensor> inputs{};  ///< contiguous CPU tensors in the order of the model's inputs; undefined for BYTES
  BytesTensors bytes{};              ///< the BYTES inputs
  int64_t rows = 1;                  ///< size of the first axis, if the model has a batch axis
  uint64_t priority = 0;             ///< 1 is the highest; 0: the default
  uint64_t timeout_us = 0;           ///< longest time in the queue; 0: the default
  SequenceFlags sequence{};
  RequestTimes times{};
  Clock::time_point deadline = Clock::time_point::max();  ///< end of the time in the queue; set by RequestQueue
  /// Set by the caller when the answer is no longer needed. Such a request does not start.
  std::shared_ptr<const std::atomic<bool>> cancelled{};
  /// Called exactly once with the answer, on any thread. It must not throw, and must not wait for other requests.
  std::function<void(InferenceResult)> done{};

  bool is_cancelled() const { return cancelled && cancelled->load(std::memory_order_relaxed); }
};

struct QueueOptions {
  int64_t max_batch_size = 0;                         ///< 0: the inputs have no batch axis
  std::optional<DynamicBatching> dynamic_batching{};  ///< nothing: each request runs alone
  uint64_t max_queue_size = 1024;                     ///< for each priority whose policy states no limit
  std::shared_ptr<const Padding> padding{};           ///< null: only requests of equal sizes are combined
};

/// The requests that wait for one model, in the order of their priorities. The class decides which requests form a batch.
/// Two requests are combined only if their inputs have the same sizes except for the first axis, and for the padded axis.
/// Threads: not thread-safe; the time is passed to each function, so that it can be tested without waiting
class RequestQueue {
 public:
  explicit RequestQueue(QueueOptions options);

  /// Adds a request. `request.times.queued` is set to `now`.
  /// Returns: false if the queue of its priority is full; the request is unchanged then
  /// Throws:  RequestError with status 400 if there is no such priority
  bool push(PendingRequest& request, Clock::time_point now);

  /// Removes the requests that are cancelled or that have timed out. Requests whose policy is to delay them stay, and run
  /// after all others.
  std::vector<PendingRequest> take_dropped(Clock::time_point now);

  /// Removes the next batch.
  /// Params:  flush – do not wait for more requests
  /// Returns: an empty list if there is no request, or if the batch waits for more requests until `wait_until`
  std::vector<PendingRequest> take_batch(Clock::time_point now, bool flush);
  Clock::time_point wait_until() const { return wait_until_; }

  /// Returns the earliest deadline of a waiting request.
  Clock::time_point next_deadline() const;
  size_t size() const;

 private:
  /// A request that could be part of the next batch.
  struct Candidate {
    std::list<PendingRequest>* level;
    std::list<PendingRequest>::iterator place;
  };
  const QueuePolicy& policy(uint64_t priority) const;
  std::vector<Candidate> candidates(bool& full);
  /// Returns how many of the candidates form the batch; 0 to wait for more.
  size_t choose(const std::vector<Candidate>& found, bool full, bool flush, Clock::time_point now);

  QueueOptions options_;
  /// One list for each priority from 1, and a last one for delayed requests.
  std::vector<std::list<PendingRequest>> levels_;
  Clock::time_point wait_until_ = Clock::time_point::max();
};

}  // namespace bellows::serve
