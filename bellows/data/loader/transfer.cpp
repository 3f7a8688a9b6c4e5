#include "bellows/data/loader/transfer.h"

#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace bellows::data {

namespace {

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

Transfer::Transfer(c10::Device device)
    : device_(with_index(device)),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device_)) {}

Transfer::~Transfer() {
  for (auto* flights : {&flights_, &landed_}) {
    for (const Flight& flight : *flights) {
      try {
        flight.done.synchronize();
      } catch (...) {  // the device is gone, including its copies
      }
    }
  }
}

c10::Allocator* Transfer::host_allocator(c10::Device device) {
  if (device.is_cpu()) return c10::GetCPUAllocator();
  try {
    return at::globalContext().getPinnedMemoryAllocator(device.type());
  } catch (const c10::Error&) {  // the device has no pinned memory
    return c10::GetCPUAllocator();
  }
}

void Transfer::begin(Batch&& batch) {
  collect();
  Flight flight{{}, {}, c10::Event(device_.type())};
  {
    const c10::StreamGuard on_side_stream(stream_);
    flight.device = batch.to(device_, /*non_blocking=*/true);
    flight.done.record(stream_);
  }
  flight.host = std::move(batch);
  flights_.push_back(std::move(flight));
}

Batch Transfer::finish() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  flight.done.block(current);
  // Prevents the copy stream from reusing this memory before `current` has finished with it.
  for (const auto& [name, tensor] : flight.device.tensors()) tensor.record_stream(current);
  Batch ready = std::move(flight.device);
  landed_.push_back(std::move(flight));
  return ready;
}

void Transfer::abandon() {
  while (!flights_.empty()) {
    landed_.push_back(std::move(flights_.front()));
    flights_.pop_front();
  }
  collect();
}

void Transfer::collect() {
  while (!landed_.empty() && landed_.front().done.query()) landed_.pop_front();
}

}  // namespace bellows::data
