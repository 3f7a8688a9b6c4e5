#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "bellows/core/mutex.h"
#include "bellows/system/unlinked_temp_file.h"

namespace bellows::recompute::detail {

/// An unlinked temporary file that is divided into allocated and free parts. The system deletes the file when the
/// process ends for any reason.
/// Threads: thread-safe
class SpillFile {
 public:
  /// Throws: c10::Error if the folder is not writable, or if fewer than `reserve_bytes` bytes are free
  SpillFile(std::string folder, int64_t reserve_bytes);
  /// Allocates a part of the file. Its size is rounded up to complete pages.
  /// Returns: the offset of the part
  /// Throws:  c10::Error if the disk is full
  int64_t take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  /// Throws: c10::Error if the disk fails. The message states the operation, the folder, the offset and the system's
  ///         error
  void write(int64_t offset, const void* data, int64_t bytes) const;
  void read(int64_t offset, void* data, int64_t bytes) const;
  /// Returns the largest number of bytes that were allocated at the same time.
  int64_t peak_bytes() const;

 private:
  UnlinkedTempFile file_;  ///< not guarded: it grows only under the lock, and its descriptor never changes
  mutable Mutex mutex_;
  std::map<int64_t, int64_t> free_ BELLOWS_GUARDED_BY(mutex_);  ///< offset → size; adjacent parts are merged
  int64_t end_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< end of the area that has been allocated at least once
  int64_t used_ BELLOWS_GUARDED_BY(mutex_) = 0;
  int64_t peak_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

}  // namespace bellows::recompute::detail
