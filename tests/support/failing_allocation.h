#pragma once

#include <cstdint>

namespace bellows::test {

enum class FailOn { this_thread, any_thread };

/// Makes the k-th call of operator new after the construction throw std::bad_alloc, once. Link failing_allocation.cpp,
/// which replaces operator new for the whole program, including libtorch. A thread can have one guard at a time, and a
/// process one guard for any_thread.
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
  /// From now on, no allocation fails, and none is counted. The destructor does the same.
  void stop();

 private:
  FailOn threads_;
};

/// While the object exists, allocations of this thread neither fail nor count. libtorch's autograd needs this: without
/// memory, destructors of graphs and guards of the thread's state end the process (std::terminate).
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
