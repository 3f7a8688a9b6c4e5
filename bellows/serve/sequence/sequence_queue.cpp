#include "bellows/serve/sequence/sequence_queue.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace bellows::serve {

namespace {

bool same_sizes(const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& other) {
  return std::ranges::equal(first, other,
                            [](const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); });
}

}  // namespace

SequenceQueue::SequenceQueue(SequenceOptions options, size_t instances)
    : options_(std::move(options)),
      width_(static_cast<size_t>(std::max<int64_t>(options_.max_batch_size, 1))),
      slots_(instances * width_) {}

std::vector<at::Tensor> SequenceQueue::initial_states() const {
  std::vector<at::Tensor> states;
  for (const SequenceState& state : options_.sequences.states) {
    std::vector<int64_t> sizes = state.initial_dims;
    if (options_.max_batch_size > 0) sizes.insert(sizes.begin(), 1);
    states.push_back(at::zeros(sizes, state.dtype));
  }
  return states;
}

bool SequenceQueue::push(PendingRequest& request, Clock::time_point now) {
  const SequenceFlags flags = request.sequence;
  const std::string of = "model \"" + options_.model + "\"";
  if (flags.id == 0)
    throw RequestError(status_bad_request, of + " runs sequences, so a request needs the parameter sequence_id.");
  if (request.rows != 1)
    throw RequestError(
        status_bad_request,
        c10::str(of, " runs sequences, so the batch size of a request must be 1, got ", request.rows, "."));
  const auto found = known_.find(flags.id);
  const bool open = found != known_.end() && found->second->open;
  if (!flags.start && !open)
    throw RequestError(status_bad_request, c10::str(of, " has no open sequence with the sequence_id ", flags.id,
                                                    ". The first request of a sequence needs sequence_start."));
  if (waiting_ >= options_.max_queue_size) return false;
  request.times.queued = now;
  if (found == known_.end()) {
    auto fresh = std::make_unique<Sequence>(Sequence{.id = flags.id, .last = now});
    known_[flags.id] = fresh.get();
    place(std::move(fresh));
  }
  Sequence& sequence = *known_.at(flags.id);
  sequence.open = !flags.end;
  sequence.waiting.push_back(std::move(request));
  ++waiting_;
  return true;
}

/// Low rows are used first, so that batches are small, and all instances are used.
void SequenceQueue::place(std::unique_ptr<Sequence> sequence) {
  for (size_t row = 0; row < width_; ++row) {
    for (size_t slot = row; slot < slots_.size(); slot += width_) {
      if (slots_[slot]) continue;
      slots_[slot] = std::move(sequence);
      return;
    }
  }
  backlog_.push_back(std::move(sequence));
}

std::vector<SequenceRow> SequenceQueue::take_batch(size_t instance, Clock::time_point now) {
  std::vector<SequenceRow> batch;
  for (size_t i = 0; i < width_; ++i) {
    Sequence* sequence = slots_[instance * width_ + i].get();
    if (!sequence || sequence->running || sequence->waiting.empty()) continue;
    PendingRequest& next = sequence->waiting.front();
    if (next.sequence.start) sequence->states = initial_states();
    const bool fits = batch.empty() || (same_sizes(batch.front().request.inputs, next.inputs) &&
                                        same_sizes(batch.front().states, sequence->states));
    if (!fits) continue;
    next.times.taken = now;
    batch.push_back({.slot = i, .request = std::move(next), .states = sequence->states});
    sequence->waiting.pop_front();
    sequence->running = true;
    --waiting_;
  }
  return batch;
}

void SequenceQueue::finish(size_t instance, size_t slot, bool ended, std::vector<at::Tensor> states,
                           Clock::time_point now) {
  const size_t place = instance * width_ + slot;
  Sequence& sequence = *slots_[place];
  sequence.running = false;
  sequence.states = std::move(states);
  sequence.last = now;
  if (ended && sequence.waiting.empty()) free_slot(place);
}

void SequenceQueue::free_slot(size_t slot) {
  known_.erase(slots_[slot]->id);
  slots_[slot].reset();
  if (backlog_.empty()) return;
  slots_[slot] = std::move(backlog_.front());
  backlog_.pop_front();
}

std::vector<PendingRequest> SequenceQueue::take_cancelled() {
  std::vector<PendingRequest> cancelled;
  for (const auto& [id, sequence] : known_) {
    bool started = true;
    for (auto place = sequence->waiting.begin(); place != sequence->waiting.end();) {
      const bool cancels = place->is_cancelled();
      if (place->sequence.start) started = !cancels;
      if (started && !cancels) {
        ++place;
        continue;
      }
      cancelled.push_back(std::move(*place));
      place = sequence->waiting.erase(place);
      --waiting_;
    }
    if (!started) sequence->open = false;  // later requests must start the sequence again
  }
  return cancelled;
}

bool SequenceQueue::expire(Clock::time_point now, bool all) {
  const auto longest = std::chrono::microseconds(options_.sequences.max_idle_us);
  bool freed = false;
  std::erase_if(backlog_, [&](const auto& sequence) {
    const bool empty = sequence->waiting.empty();  // its requests were cancelled
    if (empty) known_.erase(sequence->id);
    return empty;
  });
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    while (slots_[slot] && is_idle(*slots_[slot]) &&
           (all || !slots_[slot]->open || slots_[slot]->last + longest <= now)) {
      free_slot(slot);
      freed = true;
    }
  }
  return freed;
}

Clock::time_point SequenceQueue::next_expiry() const {
  Clock::time_point earliest = Clock::time_point::max();
  for (const auto& sequence : slots_) {
    if (sequence && is_idle(*sequence))
      earliest = std::min(earliest, sequence->last + std::chrono::microseconds(options_.sequences.max_idle_us));
  }
  return earliest;
}

}  // namespace bellows::serve
