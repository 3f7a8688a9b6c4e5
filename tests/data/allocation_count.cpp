#include "tests/data/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t mine = 0;
std::atomic<int64_t> all{0};

void* counted(size_t bytes) {
  ++mine;
  all.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* counted_or_throw(size_t bytes) {
  if (void* memory = counted(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Replaced for the whole program, libtorch included.
void* operator new(size_t bytes) {
  return counted_or_throw(bytes);
}
void* operator new[](size_t bytes) {
  return counted_or_throw(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes);
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

namespace bellows::test {

int64_t own_allocations() {
  return mine;
}
int64_t all_allocations() {
  return all;
}

}  // namespace bellows::test
