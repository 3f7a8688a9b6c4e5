#include "tests/data/late_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace bellows::test {

namespace {

/// A stream is what it has yet to do; a marker is how many operations it had been given when the event was recorded.
struct LateStream {
  std::deque<std::function<void()>> waiting;
  int64_t given = 0, done = 0;

  void put(std::function<void()> operation) {
    waiting.push_back(std::move(operation));
    ++given;
  }
  void run_to(int64_t mark) {
    while (done < mark) {
      const auto next = std::move(waiting.front());
      waiting.pop_front();
      ++done;
      next();
    }
  }
};

struct LateEvent {
  c10::StreamId stream = 0;
  int64_t mark = 0;
};

struct LateDevice {
  std::map<c10::StreamId, LateStream> streams;
  c10::StreamId current = 0, handed_out = 0;
  int64_t recorded = 0, pinned = 0;
  std::vector<void*> given_back;  // memory that operations held back may still write to
};

LateDevice& late() {
  static LateDevice device;
  return device;
}

class LateAllocator final : public c10::Allocator {
 public:
  /// As an allocator does that knows of streams.
  static void give_back(void* memory) { late().given_back.push_back(memory); }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::malloc(bytes + 1);
    std::memset(memory, 0x5a, bytes);  // what nobody has written
    return {memory, memory, &give_back, late_device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

LateAllocator& late_allocator() {
  static LateAllocator allocator;
  return allocator;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    late().pinned += static_cast<int64_t>(bytes);
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

constexpr c10::DispatchKeySet late_keys(c10::DispatchKey::PrivateUse1);

at::Tensor late_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                      std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &late_allocator(), late_keys, dtype.value_or(c10::kFloat), format);
}

at::Tensor late_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                              std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &late_allocator(), late_keys, dtype.value_or(c10::kFloat));
}

/// As a device does it: by addresses, which nobody keeps alive for it.
at::Tensor late_copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  LateStream& stream = late().streams[late().current];
  stream.put([source = from.const_data_ptr(), target = to.mutable_data_ptr(), bytes = from.nbytes()] {
    std::memcpy(target, source, bytes);
  });
  if (!non_blocking) stream.run_to(stream.given);
  return to;
}

void late_record_stream(at::Tensor&, c10::Stream) {
  ++late().recorded;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", late_empty);
  library.impl("empty_strided", late_empty_strided);
  library.impl("_copy_from", late_copy_from);
  library.impl("record_stream", late_record_stream);
}

struct LateGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return late_device; }
  c10::Device getDevice() const override { return late_device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(late().current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(++late().handed_out); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(late().current, next.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new LateEvent;
    *static_cast<LateEvent*>(*event) = {on.id(), late().streams[on.id()].given};
  }
  void block(void* event, const c10::Stream& waiter) const override {
    const LateEvent marked = *static_cast<LateEvent*>(event);
    late().streams[waiter.id()].put([marked] { late().streams[marked.stream].run_to(marked.mark); });
  }
  bool queryEvent(void* event) const override {
    const auto* marked = static_cast<LateEvent*>(event);
    return late().streams[marked->stream].done >= marked->mark;
  }
  void synchronizeEvent(void* event) const override {
    const auto* marked = static_cast<LateEvent*>(event);
    late().streams[marked->stream].run_to(marked->mark);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<LateEvent*>(event);
  }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, late_device, id); }
};
const c10::impl::DeviceGuardImplRegistrar late_registrar(c10::DeviceType::PrivateUse1, new LateGuard);

struct LateHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator allocator;
    return &allocator;
  }
};
const bool late_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new LateHooks);
  c10::register_privateuse1_backend("late");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &late_allocator());
  return true;
}();

}  // namespace

at::Tensor seen_by_current_stream(const at::Tensor& on_device) {
  LateStream& stream = late().streams[late().current];
  stream.run_to(stream.given);
  at::Tensor copy = at::empty(on_device.sizes(), at::TensorOptions(on_device.scalar_type()));
  std::memcpy(copy.mutable_data_ptr(), on_device.const_data_ptr(), on_device.nbytes());
  return copy;
}

int64_t held_back() {
  int64_t count = 0;
  for (const auto& [id, stream] : late().streams) count += static_cast<int64_t>(stream.waiting.size());
  return count;
}

int64_t recorded_streams() {
  return late().recorded;
}

int64_t pinned_bytes() {
  return late().pinned;
}

void run_late_device() {
  for (auto& [id, stream] : late().streams) stream.run_to(stream.given);
  for (void* memory : std::exchange(late().given_back, {})) std::free(memory);
}

}  // namespace bellows::test
