#include "bellows/graph/execution/output_buffers.h"

namespace bellows::graph::detail {
namespace {

/// What a storage that was handed out owns.
struct Hold {
  std::shared_ptr<ArenaPool> pool;
  std::shared_ptr<void> owner;
  std::shared_ptr<std::atomic<uint64_t>> returned;

  ~Hold() { *returned = pool->runs(); }
};

}  // namespace

c10::Storage HandedOut::over(void* data, size_t nbytes, c10::Device device, std::shared_ptr<void> owner,
                             const std::shared_ptr<ArenaPool>& pool) {
  returned_ = std::make_shared<std::atomic<uint64_t>>(0);
  auto* const hold = new Hold{pool, std::move(owner), returned_};
  c10::DataPtr held(
      data, hold, [](void* one) { delete static_cast<Hold*>(one); }, device);
  return {c10::Storage::use_byte_size_t(), nbytes, std::move(held), c10::GetAllocator(device.type()), true};
}

c10::Storage HandedOut::fresh(size_t nbytes, c10::Device device, bool keeps, const std::shared_ptr<ArenaPool>& pool) {
  std::shared_ptr<c10::DataPtr> memory = std::move(kept_);
  if (!memory || memory.use_count() > 1)
    memory = std::make_shared<c10::DataPtr>(c10::GetAllocator(device.type())->allocate(nbytes));
  std::atomic_thread_fence(std::memory_order_acquire);  // whoever let go of it is done with it
  if (keeps) kept_ = memory;
  void* const data = memory->get();
  return over(data, nbytes, device, std::move(memory), pool);
}

}  // namespace bellows::graph::detail
