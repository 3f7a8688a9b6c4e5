#include "bellows/data/formats/unpacked_files.h"

#include <algorithm>

namespace bellows::data {

std::shared_ptr<const io::Bytes> UnpackedFiles::find(size_t file) {
  const MutexLock lock(mutex_);
  const auto slot = slots_.find(file);
  if (slot == slots_.end()) return nullptr;
  slot->second.used = ++clock_;
  return slot->second.content;
}

std::shared_ptr<const io::Bytes> UnpackedFiles::get(size_t file, const std::function<io::Bytes()>& unpack) {
  UniqueLock lock(mutex_);
  ready_.wait(lock, [&]() BELLOWS_REQUIRES(mutex_) { return !slots_.count(file) || slots_[file].content; });
  Slot& slot = slots_[file];
  slot.used = ++clock_;
  if (slot.content) return slot.content;
  lock.unlock();
  std::shared_ptr<const io::Bytes> content;
  try {
    content = std::make_shared<const io::Bytes>(unpack());
  } catch (...) {
    lock.lock();
    slots_.erase(file);
    ready_.notify_all();
    throw;
  }
  lock.lock();
  slots_[file].content = content;
  bytes_ += content->size();
  make_room(file);
  ready_.notify_all();
  return content;
}

void UnpackedFiles::make_room(size_t newest) {
  while (bytes_ > limit_) {
    auto oldest = slots_.end();
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      if (slot->first == newest || !slot->second.content) continue;
      if (oldest == slots_.end() || slot->second.used < oldest->second.used) oldest = slot;
    }
    if (oldest == slots_.end()) return;
    bytes_ -= oldest->second.content->size();
    slots_.erase(oldest);
  }
}

}  // namespace bellows::data
