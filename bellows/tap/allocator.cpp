#include "bellows/tap/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows::tap {
namespace {

/// State of the whole process. It is never destroyed, because tensors are freed until the process ends.
struct AllocatorState {
  std::atomic<int64_t> current{0}, peak{0}, allocations{0}, frees{0};
  std::atomic<int> listener_count{0};
  SharedMutex mutex;
  std::vector<std::shared_ptr<AllocationListener>> listeners BELLOWS_GUARDED_BY(mutex);
};

AllocatorState& allocator_state() {
  static auto* const made = new AllocatorState;
  return *made;
}

thread_local bool inside_listener = false;

void notify_listeners(const AllocationEvent& event) {
  if (inside_listener) return;
  inside_listener = true;
  AllocatorState& state = allocator_state();
  {
    SharedLock lock(state.mutex);
    for (const auto& listener : state.listeners) {
      try {
        listener->on_allocation(event);
      } catch (...) {  // a free cannot fail
      }
    }
  }
  inside_listener = false;
}

void count_block(const void* block, int64_t bytes) {
  AllocatorState& state = allocator_state();
  const int64_t current = state.current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  (bytes > 0 ? state.allocations : state.frees).fetch_add(1, std::memory_order_relaxed);
  int64_t peak = state.peak.load(std::memory_order_relaxed);
  while (current > peak && !state.peak.compare_exchange_weak(peak, current, std::memory_order_relaxed)) {
  }
  if (state.listener_count.load(std::memory_order_relaxed)) notify_listeners({block, bytes, current});
}

void free_block(void* block) {
  if (!block) return;
  count_block(block, -static_cast<int64_t>(malloc_usable_size(block)));
  c10::free_cpu(block);
}

/// The deleter's context is the data pointer itself, because oneDNN's convolution checks this. The size of a block
/// therefore comes from the heap.
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* block = c10::alloc_cpu(bytes);
    if (block) count_block(block, static_cast<int64_t>(malloc_usable_size(block)));
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::Allocator* counting_allocator() {
  static auto* const made = new CountingAllocator;
  return made;
}

}  // namespace

void install_cpu_allocator() {
  static Mutex mutex;
  MutexLock lock(mutex);
  if (cpu_allocator_installed()) return;
  TORCH_CHECK(c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator(),
              "install_cpu_allocator: expected the CPU allocator of libtorch, found another allocator. Install memory "
              "statistics before other allocators, or do not install them.");
  c10::SetCPUAllocator(counting_allocator());
  TORCH_CHECK(cpu_allocator_installed(),
              "install_cpu_allocator: libtorch already has an allocator with a higher priority.");
}

bool cpu_allocator_installed() {
  return c10::GetCPUAllocator() == counting_allocator();
}

AllocationCounters cpu_allocation_counters() {
  const AllocatorState& state = allocator_state();
  return {state.current, state.peak, state.allocations, state.frees};
}

void reset_cpu_allocation_peak() {
  AllocatorState& state = allocator_state();
  state.peak = state.current.load();
}

AllocationGuard::AllocationGuard(std::shared_ptr<AllocationListener> listener) : listener_(std::move(listener)) {
  TORCH_CHECK_VALUE(listener_, "AllocationGuard: expected a listener, found null. Pass a std::make_shared<…>().");
  install_cpu_allocator();
  AllocatorState& state = allocator_state();
  MutexLock lock(state.mutex);
  state.listeners.push_back(listener_);
  ++state.listener_count;
}

AllocationGuard::~AllocationGuard() {
  AllocatorState& state = allocator_state();
  MutexLock lock(state.mutex);
  state.listeners.erase(std::find(state.listeners.begin(), state.listeners.end(), listener_));
  --state.listener_count;
}

}  // namespace bellows::tap
