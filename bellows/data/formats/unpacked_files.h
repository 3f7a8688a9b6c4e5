#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "bellows/io/bytes.h"

namespace bellows::data {

/// What comes out of compressed files, kept while there is room: those used last, and at least one.
/// Threads: safe; two that ask for one file wait for one unpacking.
class UnpackedFiles {
 public:
  /// Params: limit – bytes in all
  explicit UnpackedFiles(uint64_t limit = uint64_t{1} << 30) : limit_(limit) {}

  /// What is kept of the file, or null.
  std::shared_ptr<const io::Bytes> find(size_t file);
  /// The content of file number `file`. It lives as long as somebody holds it.
  /// Params: unpack – makes it; called without a lock
  /// Throws: what unpack throws; the next call tries again
  std::shared_ptr<const io::Bytes> get(size_t file, const std::function<io::Bytes()>& unpack);

 private:
  struct Slot {
    std::shared_ptr<const io::Bytes> content;  // null: somebody unpacks it
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
