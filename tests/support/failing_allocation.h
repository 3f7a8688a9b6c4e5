#pragma once

#include <cstdint>

namespace bellows::test {

enum class FailOn { this_thread, any_thread };

/// Makes the k-th operator new after its construction throw std::bad_alloc, once. Link failing_allocation.cpp, which replaces operator new
/// for the whole program, libtorch included. One guard at a time in a thread, one for any_thread in a process.
///
///     for (int64_t k = 1; k <= 300; ++k) {
///       FailAllocation guard(k);
///       try { step(); } catch (const std::bad_alloc&) {}
///       if (!guard.fired()) break;  // the step has fewer allocations
///     }
///
/// libtorch's tensor memory does not come from operator new, but each tensor and storage object does.
class FailAllocation {
 public:
  /// Params: k – from 1; 0: none fails, they are only counted
  explicit FailAllocation(int64_t k, FailOn threads = FailOn::this_thread);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;

  bool fired() const;
  /// Allocations since the construction, of the guarded threads.
  int64_t count() const;
  /// From now on none fails and none is counted. The destructor does the same.
  void stop();

 private:
  FailOn threads_;
};

/// Allocations of this thread neither fail nor count meanwhile: libtorch's autograd ends the process (std::terminate) where its guards of the
/// thread's state and the destructors of graphs find no memory.
class SparedAllocations {
 public:
  SparedAllocations();
  ~SparedAllocations();
  SparedAllocations(const SparedAllocations&) = delete;
  SparedAllocations& operator=(const SparedAllocations&) = delete;

 private:
  bool counted_ = false;
};

}  // namespace bellows::test
