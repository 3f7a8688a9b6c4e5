#include <ATen/ops/empty_strided.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "bellows/recompute/host_store.h"

// This has not been tested on a machine with an accelerator. It uses libtorch's device-independent streams and events.
namespace bellows::recompute::detail {

namespace {

c10::Stream computation(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Later work on `then` waits for all work queued on `first` so far.
void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(then);
}

/// The memory must not be reused before `stream` has finished with it.
void used_by(const at::Tensor& tensor, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

}  // namespace

HostTensor::HostTensor(std::shared_ptr<HostStore> store, const at::Tensor& tensor, int64_t number)
    : store_(std::move(store)), number_(number), device_(tensor.device()) {
  const c10::Stream stream = store_->copies(device_);
  order(computation(device_), stream);
  const c10::StreamGuard guard(stream);
  host_ = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  used_by(tensor, stream);
}

HostTensor::~HostTensor() {
  const MutexLock lock(store_->mutex_);
  store_->items_.erase(number_);
  if (back_.defined()) store_->reading_bytes_ -= static_cast<int64_t>(host_.nbytes());
}

/// Starts the copy back to the device. The same stream first completes the copy to the host.
void HostTensor::bring() {
  const c10::Stream stream = store_->copies(device_);
  const c10::StreamGuard guard(stream);
  back_ = at::empty_strided(host_.sizes(), host_.strides(), host_.options().device(device_).pinned_memory(false));
  back_.copy_(host_, /*non_blocking=*/true);
  done_.emplace(device_.type());
  done_->record(stream);
  store_->reading_bytes_ += static_cast<int64_t>(host_.nbytes());
}

at::Tensor HostTensor::unpack() {
  const MutexLock lock(store_->mutex_);
  if (back_.defined()) {
    ++store_->stats_.read_in_time;
  } else {
    ++store_->stats_.waited;
    bring();
  }
  const c10::Stream stream = computation(device_);
  done_->block(stream);
  used_by(back_, stream);
  const at::Tensor result = std::exchange(back_, at::Tensor());
  store_->reading_bytes_ -= static_cast<int64_t>(host_.nbytes());
  store_->read_ahead(number_);
  return result;
}

std::shared_ptr<tap::PackedTensor> HostStore::put(const at::Tensor& tensor) {
  const MutexLock lock(mutex_);
  auto item = std::make_shared<HostTensor>(shared_from_this(), tensor, next_number_++);
  items_.emplace(item->number_, item.get());
  ++stats_.tensors;
  stats_.bytes += static_cast<int64_t>(tensor.nbytes());
  return item;
}

void HostStore::read_ahead(int64_t before) {
  for (auto it = items_.lower_bound(before); it != items_.begin();) {
    HostTensor& item = *(--it)->second;
    if (item.back_.defined()) continue;
    const auto bytes = static_cast<int64_t>(item.host_.nbytes());
    if (reading_bytes_ > 0 && reading_bytes_ + bytes > in_flight_bytes_) return;
    item.bring();
  }
}

c10::Stream HostStore::copies(c10::Device device) {
  const auto known = streams_.find(device);
  if (known != streams_.end()) return known->second;
  return streams_.emplace(device, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device))
      .first->second;
}

OffloadStats HostStore::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace bellows::recompute::detail
