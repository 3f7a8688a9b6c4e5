#pragma once

namespace bellows::test {

/// While one lives, the system refuses every new thread of this process (EAGAIN), as it does at RLIMIT_NPROC and RLIMIT_AS. Link
/// failing_threads.cpp, which replaces pthread_create for the whole program.
class FailThreads {
 public:
  FailThreads();
  ~FailThreads();
  FailThreads(const FailThreads&) = delete;
  FailThreads& operator=(const FailThreads&) = delete;
  /// How many threads were refused since the construction.
  int refused() const;
};

/// Sanitizers replace pthread_create themselves: there FailThreads does nothing.
bool can_fail_threads();

}  // namespace bellows::test
