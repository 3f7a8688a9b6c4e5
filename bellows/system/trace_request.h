#pragma once

#include <cstdint>

namespace bellows {

/// Requests a trace of the next training steps of this process. A later call replaces a request that was not taken yet.
/// Threads: may be called from any thread and from a signal handler
void request_trace(int64_t steps) noexcept;
/// Returns the number of requested steps, and clears the request. Returns 0 if there is no request.
int64_t take_trace_request() noexcept;

}  // namespace bellows
