#include "tests/support/failing_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

std::atomic<bool> counts_any_thread{false};
std::atomic<int64_t> counted{0}, failing{0};
std::atomic<bool> has_fired{false};

/// Of a guard of this thread alone.
struct Own {
  bool counts = false, fired = false;
  int64_t counted = 0, failing = 0;
};
thread_local Own own;

bool must_fail() {
  if (own.counts) {
    own.fired |= ++own.counted == own.failing;
    return own.counted == own.failing;
  }
  if (!counts_any_thread.load(std::memory_order_relaxed)) return false;
  if (counted.fetch_add(1) + 1 != failing.load()) return false;
  has_fired = true;
  return true;
}

void* allocate(size_t bytes) {
  return must_fail() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}

void* allocate_or_throw(size_t bytes) {
  if (void* memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}

void* allocate_aligned(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  if (void* memory = must_fail() ? nullptr : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Replaced for the whole program, libtorch included.
void* operator new(size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new[](size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_aligned(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocate_aligned(bytes, alignment);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace bellows::test {

FailAllocation::FailAllocation(int64_t k, FailOn threads) : threads_(threads) {
  if (threads == FailOn::this_thread) {
    own = {.counts = true, .failing = k};
    return;
  }
  counted = 0;
  has_fired = false;
  failing = k;
  counts_any_thread = true;
}
FailAllocation::~FailAllocation() {
  stop();
}

bool FailAllocation::fired() const {
  return threads_ == FailOn::this_thread ? own.fired : has_fired.load();
}
int64_t FailAllocation::count() const {
  return threads_ == FailOn::this_thread ? own.counted : counted.load();
}
void FailAllocation::stop() {
  if (threads_ == FailOn::this_thread) {
    own.counts = false;
    return;
  }
  counts_any_thread = false;
  failing = 0;
}

SparedAllocations::SparedAllocations() : counted_(std::exchange(own.counts, false)) {}
SparedAllocations::~SparedAllocations() {
  own.counts = counted_;
}

}  // namespace bellows::test
