#pragma once

#include "bellows/data/images/transform.h"

#include <atomic>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

namespace bellows::data {

/// Decoded images by sample id. The cache fills up to its budget and evicts nothing.
/// Threads: thread-safe
class ImageCache {
 public:
  explicit ImageCache(int64_t bytes) : budget_(bytes) {}

  /// Returns the image, valid as long as the cache exists, or nothing.
  std::optional<ImageView> find(int64_t id) const;
  /// Stores a copy if it fits into the budget.
  void insert(int64_t id, const ImageView& image);

 private:
  struct Entry {
    std::unique_ptr<uint8_t[]> pixels;
    ImageView view;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<int64_t, Entry> entries_;
  std::atomic<int64_t> budget_;  // bytes left
};

}  // namespace bellows::data
