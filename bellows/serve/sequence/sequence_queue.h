#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/serve/request_queue.h"

namespace bellows::serve {

struct SequenceOptions {
  int64_t max_batch_size = 0;  ///< number of slots of each instance; 0: one slot, and the tensors have no batch axis
  SequenceBatching sequences{};
  size_t outputs = 0;  ///< number of outputs that clients receive; the states follow them
  uint64_t max_queue_size = 1024;
  std::string model{};  ///< name, for error messages
};

/// A request that runs next in a slot.
struct SequenceRow {
  size_t slot = 0;  ///< within the instance: the row of the batch
  PendingRequest request{};
  std::vector<at::Tensor> states{};  ///< with the batch axis, if there is one
};

/// The requests of sequences. A sequence keeps its slot, and thus its instance and its row in the batch, from its first
/// request to its end. Its requests run in order, one at a time. A sequence that finds no free slot waits for one.
///
/// A sequence ends after a request with sequence_end, or if it has no request for `max_idle_us`.
/// Threads: not thread-safe; the time is passed to each function, so that it can be tested without waiting
class SequenceQueue {
 public:
  SequenceQueue(SequenceOptions options, size_t instances);

  /// Adds a request. `request.times.queued` is set to `now`.
  /// Returns: false if the queue is full; the request is unchanged then
  /// Throws:  RequestError with status 400 if the request has no sequence_id or several rows, or if it does not start the
  ///          sequence and there is no such sequence
  bool push(PendingRequest& request, Clock::time_point now);

  /// Removes the next request of each slot of an instance. Requests whose inputs or states have other sizes than those of
  /// the first one wait for the next batch.
  std::vector<SequenceRow> take_batch(size_t instance, Clock::time_point now);

  /// Stores the states of a sequence after a request from take_batch(), or frees its slot.
  /// Params: ended – whether the request ended its sequence
  void finish(size_t instance, size_t slot, bool ended, std::vector<at::Tensor> states, Clock::time_point now);

  /// Removes the requests that are cancelled. If one of them starts a sequence, the later ones of this sequence are removed,
  /// too.
  std::vector<PendingRequest> take_cancelled();

  /// Ends the sequences that had no request for too long, and gives their slots to waiting sequences.
  /// Params:  all – end all sequences without a request
  /// Returns: whether a slot became free
  bool expire(Clock::time_point now, bool all = false);
  /// Returns when expire() is due next.
  Clock::time_point next_expiry() const;

  /// Returns the number of waiting requests.
  size_t size() const { return waiting_; }
  size_t active_sequences() const { return known_.size(); }

 private:
  struct Sequence {
    uint64_t id = 0;
    bool open = true;  ///< the last request did not end the sequence
    bool running = false;
    std::list<PendingRequest> waiting{};
    std::vector<at::Tensor> states{};
    Clock::time_point last{};  ///< end of the last request
  };

  void place(std::unique_ptr<Sequence> sequence);
  void free_slot(size_t slot);
  bool is_idle(const Sequence& sequence) const { return !sequence.running && sequence.waiting.empty(); }
  std::vector<at::Tensor> initial_states() const;

  SequenceOptions options_;
  size_t width_;                                    ///< slots of an instance
  std::vector<std::unique_ptr<Sequence>> slots_;    ///< of all instances; null: free
  std::list<std::unique_ptr<Sequence>> backlog_{};  ///< sequences without a slot
  std::map<uint64_t, Sequence*> known_{};           ///< by sequence_id
  size_t waiting_ = 0;
};

}  // namespace bellows::serve
