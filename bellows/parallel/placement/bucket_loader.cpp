#include "bellows/parallel/placement/bucket_loader.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "bellows/system/thread.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::parallel {

namespace {

c10::StorageImpl& storage_impl(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

at::Tensor new_memory(int64_t bytes, c10::Device device = c10::kCPU) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
}

at::Tensor tensor_of(c10::DataPtr memory, int64_t bytes) {
  const c10::Device device = memory.device();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory));
  return at::empty({0}, at::TensorOptions(at::kByte).device(device)).set_(std::move(storage), 0, {bytes});
}

}  // namespace

BucketLoader::BucketLoader(std::vector<WeightBucket>& buckets, const WeightFile& file, c10::Device device,
                           int64_t budget, std::string why)
    : buckets_(buckets), file_(file), device_(device), budget_(budget), why_(std::move(why)), slots_(buckets.size()) {
  for (WeightBucket& bucket : buckets_) {
    if (bucket.place != WeightPlace::host) continue;
    bucket.host = new_memory(bucket.bytes);
    if (device.is_cuda()) bucket.host = bucket.host.pin_memory();
    counters_.bytes_read += read_bucket(bucket, file_, bucket.host);
  }
  if (!buckets_.empty()) reader_ = start_thread("streamed weights", [this] { run_reader(); });
}

BucketLoader::~BucketLoader() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (reader_.joinable()) reader_.join();
  const MutexLock lock(mutex_);
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (slots_[bucket].state == State::loaded) withdraw(bucket);
  }
}

c10::DataPtr BucketLoader::withdraw(size_t bucket) const {
  return tap::withdraw_memory(*buckets_[bucket].storage.unsafeGetStorageImpl(), why_);
}

void BucketLoader::run_reader() {
  UniqueLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const size_t bucket = queue_.front();
    queue_.pop_front();
    const at::Tensor memory = slots_[bucket].memory;
    lock.unlock();
    std::exception_ptr error;
    int64_t bytes = 0;
    try {
      bytes = read_bucket(buckets_[bucket], file_, memory);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slots_[bucket].state = error ? State::failed : State::read;
    slots_[bucket].error = error;
    counters_.bytes_read += bytes;
    changed_.notify_all();
  }
}

void BucketLoader::load(const std::vector<size_t>& needed, const std::vector<size_t>& wanted) {
  const auto has = [](const std::vector<size_t>& list, size_t bucket) {
    return std::ranges::find(list, bucket) != list.end();
  };
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!has(wanted, bucket)) free(bucket);
  }
  for (const size_t bucket : wanted) start(bucket, !has(needed, bucket));
  for (const size_t bucket : needed) finish(bucket);
}

at::Tensor BucketLoader::take_memory(int64_t bytes) {
  const auto fits = std::ranges::find_if(spare_, [&](const at::Tensor& spare) { return spare.numel() == bytes; });
  if (fits != spare_.end()) {
    at::Tensor memory = std::move(*fits);
    spare_.erase(fits);
    return memory;
  }
  const auto used = [this] {
    const MutexLock lock(mutex_);
    return counters_.loaded_bytes;
  };
  while (!spare_.empty() && used() + bytes > budget_) {
    count_memory(-spare_.back().numel());
    spare_.pop_back();
  }
  at::Tensor memory = new_memory(bytes);
  count_memory(bytes);
  return memory;
}

StreamedWeightsCounters BucketLoader::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

void BucketLoader::count_memory(int64_t bytes) {
  const MutexLock lock(mutex_);
  counters_.loaded_bytes += bytes;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.loaded_bytes);
}

void BucketLoader::start(size_t bucket, bool early) {
  {
    const MutexLock lock(mutex_);
    if (slots_[bucket].state != State::absent) return;
  }
  const WeightBucket& source = buckets_[bucket];
  at::Tensor memory = take_memory(source.bytes);
  try {
    if (source.place == WeightPlace::host) memory.copy_(source.host);
  } catch (...) {
    count_memory(-source.bytes);
    throw;
  }
  const MutexLock lock(mutex_);
  slots_[bucket].memory = std::move(memory);
  slots_[bucket].state = source.place == WeightPlace::host ? State::read : State::reading;
  ++counters_.loads;
  if (early) ++counters_.prefetched;
  if (source.place == WeightPlace::host) return;
  queue_.push_back(bucket);
  changed_.notify_all();
}

void BucketLoader::wait_until_read(size_t bucket) {
  UniqueLock lock(mutex_);
  changed_.wait(lock, [&]() BELLOWS_REQUIRES(mutex_) { return slots_[bucket].state != State::reading; });
}

void BucketLoader::finish(size_t bucket) {
  wait_until_read(bucket);
  std::exception_ptr error;
  at::Tensor memory;
  {
    const MutexLock lock(mutex_);
    Slot& slot = slots_[bucket];
    if (slot.state == State::loaded) return;
    error = slot.error;
    if (!error) memory = std::move(slot.memory);
  }
  if (error) {
    free(bucket);
    std::rethrow_exception(error);
  }
  try {
    if (!device_.is_cpu()) memory = memory.to(device_);
    tap::provide_memory(*buckets_[bucket].storage.unsafeGetStorageImpl(),
                        tap::withdraw_memory(storage_impl(memory), why_));
  } catch (...) {  // there is no memory, and the next load() reads the bucket again
    {
      const MutexLock lock(mutex_);
      slots_[bucket] = {};
    }
    count_memory(-buckets_[bucket].bytes);
    throw;
  }
  const MutexLock lock(mutex_);
  slots_[bucket].state = State::loaded;
}

void BucketLoader::free(size_t bucket) {
  wait_until_read(bucket);
  const int64_t bytes = buckets_[bucket].bytes;
  at::Tensor memory;
  {
    const MutexLock lock(mutex_);
    Slot& slot = slots_[bucket];
    if (slot.state == State::absent) return;
    memory = std::move(slot.memory);
    if (slot.state == State::loaded) memory = tensor_of(withdraw(bucket), bytes);
    slot = {};
  }
  if (memory.is_cpu() && device_.is_cpu()) return spare_.push_back(std::move(memory));
  memory.reset();
  count_memory(-bytes);
}

}  // namespace bellows::parallel
