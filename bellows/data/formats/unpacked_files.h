#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "bellows/io/bytes.h"

namespace bellows::data {

/// A cache of decompressed files. It keeps the most recently used files up to a limit, and at least one.
/// Threads: thread-safe; concurrent requests for one file share one decompression
class UnpackedFiles {
 public:
  /// Params: limit – total bytes
  explicit UnpackedFiles(uint64_t limit = uint64_t{1} << 30) : limit_(limit) {}

  /// Returns the cached content of the file, or null.
  std::shared_ptr<const io::Bytes> find(size_t file);
  /// Returns the content of file number `file`. It stays valid while the pointer is held.
  /// Params: unpack – decompresses the file; called without a lock
  /// Throws: exceptions of `unpack`; the next call tries again
  std::shared_ptr<const io::Bytes> get(size_t file, const std::function<io::Bytes()>& unpack);

 private:
  struct Slot {
    std::shared_ptr<const io::Bytes> content;  // null: a thread is decompressing it
    uint64_t used = 0;
  };
  void make_room(size_t newest);

  const uint64_t limit_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::map<size_t, Slot> slots_;
  uint64_t clock_ = 0, bytes_ = 0;
};

}  // namespace bellows::data
