#include "bellows/data/images/image_cache.h"

namespace bellows::data {

std::optional<ImageView> ImageCache::find(int64_t id) const {
  SharedLock lock(mutex_);
  const auto entry = entries_.find(id);
  return entry == entries_.end() ? std::nullopt : std::optional(entry->second.view);
}

void ImageCache::insert(int64_t id, const ImageView& image) {
  const int64_t row = image.width * image.channels, bytes = image.height * row;
  if (budget_.load() < bytes) return;
  Entry entry{std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(bytes)), {}};
  entry.view = {entry.pixels.get(), image.height, image.width, image.channels, row, image.channels};
  image.copy_to(entry.pixels.get(), row);
  MutexLock lock(mutex_);
  if (budget_.load() >= bytes && entries_.try_emplace(id, std::move(entry)).second) budget_ -= bytes;
}

}  // namespace bellows::data
