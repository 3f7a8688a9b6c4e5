#pragma once

#include <functional>
#include <map>
#include <memory>

#include "bellows/core/mutex.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// A cache of decompressed files. It stores the most recently used files up to a size limit, but always at least one
/// file.
/// Threads: thread-safe; concurrent requests for one file share one decompression
class UnpackedFiles {
 public:
  /// Params: limit – maximum total size in bytes
  explicit UnpackedFiles(uint64_t limit = uint64_t{1} << 30) : limit_(limit) {}

  /// Returns the cached content of the file, or null if it is not cached.
  std::shared_ptr<const io::Bytes> find(size_t file);
  /// Returns the content of the file with the index `file`. The content is valid while the caller holds the pointer.
  /// Params: unpack – decompresses the file; called without a lock
  /// Throws: exceptions of `unpack`; the next call for this file calls `unpack` again
  std::shared_ptr<const io::Bytes> get(size_t file, const std::function<io::Bytes()>& unpack);

 private:
  struct Slot {
    std::shared_ptr<const io::Bytes> content;  // null: a thread is decompressing it
    uint64_t used = 0;
  };
  void make_room(size_t newest) BELLOWS_REQUIRES(mutex_);

  const uint64_t limit_;
  Mutex mutex_;
  ConditionVariable ready_;
  std::map<size_t, Slot> slots_ BELLOWS_GUARDED_BY(mutex_);
  uint64_t clock_ BELLOWS_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

}  // namespace bellows::data
