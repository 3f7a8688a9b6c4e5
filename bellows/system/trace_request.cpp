#include "bellows/system/trace_request.h"

#include <atomic>

namespace bellows {

namespace {

std::atomic<int64_t> requested_steps{0};
static_assert(std::atomic<int64_t>::is_always_lock_free, "a signal handler sets it");

}  // namespace

void request_trace(int64_t steps) noexcept {
  requested_steps = steps;
}

int64_t take_trace_request() noexcept {
  return requested_steps.exchange(0);
}

}  // namespace bellows
