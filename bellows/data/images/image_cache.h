#pragma once

#include "bellows/core/mutex.h"
#include "bellows/data/images/transform.h"

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

namespace bellows::data {

/// Stores decoded images by sample id. When the cache has reached its size limit, it accepts no more images and evicts
/// none.
/// Threads: thread-safe
class ImageCache {
 public:
  explicit ImageCache(int64_t bytes) : budget_(bytes) {}

  /// Returns the image, or nothing if it is not cached. The image is valid while the cache exists.
  std::optional<ImageView> find(int64_t id) const;
  /// Stores a copy of the image if it fits into the cache.
  void insert(int64_t id, const ImageView& image);

 private:
  struct Entry {
    std::unique_ptr<uint8_t[]> pixels;
    ImageView view;
  };
  mutable SharedMutex mutex_;
  std::unordered_map<int64_t, Entry> entries_ BELLOWS_GUARDED_BY(mutex_);
  std::atomic<int64_t> budget_;  // remaining bytes
};

}  // namespace bellows::data
