#include "bellows/recompute/spill_store.h"

#include <ATen/ops/empty_strided.h>

#include "bellows/system/thread.h"
#include "bellows/tap/deferral.h"

namespace bellows::recompute::detail {

SpilledTensor::SpilledTensor(std::shared_ptr<SpillStore> store, at::Tensor dense, int64_t number)
    : store_(std::move(store)),
      number_(number),
      sizes_(dense.sizes()),
      strides_(dense.strides()),
      options_(dense.options()),
      bytes_(static_cast<int64_t>(dense.nbytes())),
      tensor_(std::move(dense)),
      data_(tensor_.const_data_ptr()),
      given_(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()) {}

SpilledTensor::~SpilledTensor() {
  store_->forget(*this);
}

at::Tensor SpilledTensor::unpack() {
  return store_->get(shared_from_this());
}

at::Tensor SpilledTensor::read_from_file() const {
  at::Tensor result = at::empty_strided(sizes_, strides_, options_);
  store_->file_.read(offset_, result.mutable_data_ptr(), bytes_);
  return result;
}

SpillStore::SpillStore(const std::string& folder, int64_t reserve_bytes, int64_t in_flight_bytes)
    : file_(folder, reserve_bytes), in_flight_bytes_(in_flight_bytes) {
  thread_ = start_thread("offload", [this, shared = shared_] { run(shared, this); });
}

SpillStore::~SpillStore() {
  {
    const MutexLock lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->work.notify_all();
  // If the last tensor was destroyed on the thread itself, the thread accesses only the shared state afterwards.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void SpillStore::run(const std::shared_ptr<Shared>& shared, SpillStore* store) {
  UniqueLock lock(shared->mutex);
  for (;;) {
    shared->work.wait(lock, [&]() BELLOWS_REQUIRES(shared->mutex) {
      return shared->ending || !shared->to_read.empty() || !shared->to_write.empty();
    });
    if (shared->ending) return;
    const bool reads = !shared->to_read.empty();
    auto& queue = reads ? shared->to_read : shared->to_write;
    Item item = queue.front().lock();
    queue.pop_front();
    if (!item) continue;
    if (reads) {
      store->read_next(item);
    } else {
      store->write_next(item);
    }
    lock.unlock();
    shared->progress.notify_all();
    item.reset();  // may destroy the tensor and the store
    lock.lock();
  }
}

void SpillStore::write_next(const Item& item) {
  if (item->place_ != SpilledTensor::Place::queued) return;
  item->place_ = SpilledTensor::Place::writing;
  const at::Tensor tensor = item->tensor_;
  std::exception_ptr error;
  int64_t offset = -1;
  try {
    const MutexUnlock unlocked(shared_->mutex);
    offset = file_.take(item->bytes());
    file_.write(offset, item->data_, item->bytes());
  } catch (...) {
    error = std::current_exception();
  }
  writing_bytes_ -= item->bytes();
  item->offset_ = offset;
  if (error) {
    item->place_ = SpilledTensor::Place::memory;
    if (!error_) error_ = error;
  } else {
    item->place_ = SpilledTensor::Place::file;
    item->tensor_.reset();
  }
}

void SpillStore::read_next(const Item& item) {
  if (item->place_ != SpilledTensor::Place::reading) return;
  at::Tensor tensor;
  std::exception_ptr error;
  try {
    const MutexUnlock unlocked(shared_->mutex);
    tensor = item->read_from_file();
  } catch (...) {
    error = std::current_exception();
  }
  item->tensor_ = tensor;
  item->error_ = error;
  item->ahead_ = true;
  item->place_ = SpilledTensor::Place::memory;
}

void SpillStore::fail_if_broken() const {
  if (error_) std::rethrow_exception(error_);
}

std::shared_ptr<tap::PackedTensor> SpillStore::put(const at::Tensor& tensor) {
  tap::sync();
  UniqueLock lock(shared_->mutex);
  fail_if_broken();
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const auto room = [&]() BELLOWS_REQUIRES(shared_->mutex) {
    return writing_bytes_ == 0 || writing_bytes_ + bytes <= in_flight_bytes_ || error_;
  };
  if (!room()) {
    ++stats_.waited;
    shared_->progress.wait(lock, room);
    fail_if_broken();
  }
  auto item = std::make_shared<SpilledTensor>(shared_from_this(), tensor, next_number_++);
  items_.emplace(item->number_, item.get());
  writing_bytes_ += bytes;
  ++stats_.tensors;
  stats_.bytes += bytes;
  shared_->to_write.push_back(item);
  shared_->work.notify_one();
  return item;
}

at::Tensor SpillStore::get(const Item& item) {
  UniqueLock lock(shared_->mutex);
  fail_if_broken();
  read_ahead(item->number_);
  if (const auto given = item->given_.lock()) return at::Tensor(given);
  if (item->place_ == SpilledTensor::Place::queued) {  // no longer worth writing
    writing_bytes_ -= item->bytes();
    item->place_ = SpilledTensor::Place::memory;
  }
  if (item->place_ == SpilledTensor::Place::writing) return item->tensor_;
  if (item->place_ == SpilledTensor::Place::reading) {
    ++stats_.waited;
    shared_->progress.wait(lock, [&] { return item->place_ != SpilledTensor::Place::reading; });
  } else if (item->place_ == SpilledTensor::Place::memory) {
    ++stats_.read_in_time;
  }
  at::Tensor result = item->tensor_;
  if (item->ahead_) {
    item->ahead_ = false;
    item->place_ = SpilledTensor::Place::file;
    item->tensor_.reset();
    reading_bytes_ -= item->bytes();
    read_ahead(item->number_);
    if (const auto error = std::exchange(item->error_, nullptr)) std::rethrow_exception(error);
  } else if (item->place_ == SpilledTensor::Place::file) {
    ++stats_.waited;
    lock.unlock();
    result = item->read_from_file();
    lock.lock();
  }
  item->given_ = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(result.getIntrusivePtr());
  return result;
}

void SpillStore::read_ahead(int64_t before) {
  for (auto it = items_.lower_bound(before); it != items_.begin();) {
    SpilledTensor& item = *(--it)->second;
    if (item.place_ != SpilledTensor::Place::file || item.given_.use_count() > 0) continue;
    if (reading_bytes_ > 0 && reading_bytes_ + item.bytes() > in_flight_bytes_) return;
    const auto alive = item.weak_from_this();
    if (alive.expired()) continue;
    item.place_ = SpilledTensor::Place::reading;
    reading_bytes_ += item.bytes();
    shared_->to_read.push_back(alive);
    shared_->work.notify_one();
  }
}

void SpillStore::forget(SpilledTensor& item) {
  {
    const MutexLock lock(shared_->mutex);
    items_.erase(item.number_);
    if (item.place_ == SpilledTensor::Place::queued) writing_bytes_ -= item.bytes();
    if (item.ahead_ || item.place_ == SpilledTensor::Place::reading) reading_bytes_ -= item.bytes();
  }
  if (item.offset_ >= 0) file_.give_back(item.offset_, item.bytes());
  shared_->progress.notify_all();
}

void SpillStore::wait_until_written() {
  UniqueLock lock(shared_->mutex);
  shared_->progress.wait(lock, [&]() BELLOWS_REQUIRES(shared_->mutex) { return writing_bytes_ == 0 || error_; });
  fail_if_broken();
}

OffloadStats SpillStore::stats() const {
  const MutexLock lock(shared_->mutex);
  OffloadStats result = stats_;
  result.file_bytes = file_.peak_bytes();
  return result;
}

}  // namespace bellows::recompute::detail
