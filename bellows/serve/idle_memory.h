#pragma once

#include <cstdint>

namespace bellows::serve {

/// Returns freed memory to the operating system after a burst of requests.
/// Cost:    while requests arrive, none. Later requests cause page faults for the returned memory once
/// Threads: not thread-safe
class IdleMemory {
 public:
  /// Call this function once per second.
  /// Params: requests – number of all requests so far
  void check(uint64_t requests);

 private:
  uint64_t requests_ = 0;
  int quiet_ = 0;  ///< calls without a new request
  bool used_ = true;
};

}  // namespace bellows::serve
