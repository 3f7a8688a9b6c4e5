#include "bellows/serve/request_queue.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace bellows::serve {

namespace {

bool can_join(const PendingRequest& first, const PendingRequest& other, const Padding* padding) {
  if (padding && padding->can_join(first.inputs, other.inputs)) return true;
  for (size_t i = 0; i < first.inputs.size(); ++i) {
    const at::IntArrayRef a = first.inputs[i].sizes(), b = other.inputs[i].sizes();
    if (a.size() != b.size() || a.empty() || !std::equal(a.begin() + 1, a.end(), b.begin() + 1)) return false;
  }
  return true;
}

Clock::time_point after(Clock::time_point start, uint64_t us) {
  constexpr uint64_t day_us = 86'400'000'000;  // longer times would overflow
  return start + std::chrono::microseconds(std::min(us, 1000 * day_us));
}

}  // namespace

RequestQueue::RequestQueue(QueueOptions options) : options_(std::move(options)) {
  const uint64_t priorities = options_.dynamic_batching ? options_.dynamic_batching->priority_levels : 0;
  levels_.resize(std::max<uint64_t>(priorities, 1) + 1);
}

const QueuePolicy& RequestQueue::policy(uint64_t priority) const {
  static const QueuePolicy none{};
  if (!options_.dynamic_batching) return none;
  const auto found = options_.dynamic_batching->priority_policies.find(priority);
  return found != options_.dynamic_batching->priority_policies.end() ? found->second
                                                                     : options_.dynamic_batching->default_policy;
}

bool RequestQueue::push(PendingRequest& request, Clock::time_point now) {
  uint64_t priority = request.priority;
  const uint64_t priorities = options_.dynamic_batching ? options_.dynamic_batching->priority_levels : 0;
  if (priorities == 0) {
    priority = 1;
  } else if (priority == 0) {
    priority = options_.dynamic_batching->default_priority_level;
  } else if (priority > priorities) {
    throw RequestError(status_bad_request, c10::str("parameters: priority: expected an integer from 1 to ", priorities,
                                                    ", got ", priority, "."));
  }
  const QueuePolicy& rules = policy(priority);
  std::list<PendingRequest>& level = levels_[priority - 1];
  if (level.size() >= (rules.max_queue_size > 0 ? rules.max_queue_size : options_.max_queue_size)) return false;
  uint64_t timeout = rules.default_timeout_us;
  if (rules.allow_timeout_override && request.timeout_us > 0)
    timeout = timeout == 0 ? request.timeout_us : std::min(timeout, request.timeout_us);
  request.priority = priority;
  request.times.queued = now;
  request.deadline = timeout == 0 ? Clock::time_point::max() : after(now, timeout);
  level.push_back(std::move(request));
  return true;
}

std::vector<PendingRequest> RequestQueue::take_dropped(Clock::time_point now) {
  std::vector<PendingRequest> dropped;
  for (std::list<PendingRequest>& level : levels_) {
    for (auto place = level.begin(); place != level.end();) {
      const auto next = std::next(place);
      const bool cancelled = place->is_cancelled(), expired = place->deadline <= now;
      if (expired && !cancelled && policy(place->priority).delay_on_timeout) {
        place->deadline = Clock::time_point::max();
        levels_.back().splice(levels_.back().end(), level, place);
      } else if (cancelled || expired) {
        dropped.push_back(std::move(*place));
        level.erase(place);
      }
      place = next;
    }
  }
  return dropped;
}

std::vector<RequestQueue::Candidate> RequestQueue::candidates(bool& full) {
  std::vector<Candidate> found;
  int64_t rows = 0;
  for (std::list<PendingRequest>& level : levels_) {
    for (auto place = level.begin(); place != level.end(); ++place) {
      if (!found.empty() && !can_join(*found.front().place, *place, options_.padding.get())) continue;
      full = !found.empty() && rows + place->rows > options_.max_batch_size;
      if (full) return found;
      rows += place->rows;
      found.push_back({&level, place});
      full = !options_.dynamic_batching || rows >= options_.max_batch_size;
      if (full) return found;
    }
  }
  return found;
}

size_t RequestQueue::choose(const std::vector<Candidate>& found, bool full, bool flush, Clock::time_point now) {
  if (!options_.dynamic_batching) return 1;
  int64_t rows = 0;
  size_t preferred = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    rows += found[i].place->rows;
    if (std::ranges::binary_search(options_.dynamic_batching->preferred_sizes, rows)) preferred = i + 1;
  }
  if (preferred > 0) return preferred;
  const auto until = after(found.front().place->times.queued, options_.dynamic_batching->max_queue_delay_us);
  if (full || flush || until <= now) return found.size();
  wait_until_ = until;
  return 0;
}

std::vector<PendingRequest> RequestQueue::take_batch(Clock::time_point now, bool flush) {
  wait_until_ = Clock::time_point::max();
  bool full = false;
  const std::vector<Candidate> found = candidates(full);
  const size_t count = found.empty() ? 0 : choose(found, full, flush, now);
  std::vector<PendingRequest> batch;
  batch.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    batch.push_back(std::move(*found[i].place));
    found[i].level->erase(found[i].place);
    batch.back().times.taken = now;
  }
  return batch;
}

Clock::time_point RequestQueue::next_deadline() const {
  Clock::time_point earliest = Clock::time_point::max();
  for (const auto& level : levels_) {
    for (const PendingRequest& request : level) earliest = std::min(earliest, request.deadline);
  }
  return earliest;
}

size_t RequestQueue::size() const {
  size_t count = 0;
  for (const auto& level : levels_) count += level.size();
  return count;
}

}  // namespace bellows::serve
