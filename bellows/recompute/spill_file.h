#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "bellows/system/unlinked_temp_file.h"

namespace bellows::recompute::detail {

/// An unlinked temporary file and the allocation of its parts. The system deletes the file when the process ends for
/// any reason.
/// Threads: safe
class SpillFile {
 public:
  /// Throws: c10::Error if the folder is not writable, or has less than `reserve_bytes` free
  SpillFile(std::string folder, int64_t reserve_bytes);
  /// Allocates an unused part of whole pages.
  /// Returns: its offset
  /// Throws:  c10::Error if the disk is full
  int64_t take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  /// Throws: c10::Error if the disk fails (the message gives the operation, the folder, the offset and the system's
  ///         reason)
  void write(int64_t offset, const void* data, int64_t bytes) const;
  void read(int64_t offset, void* data, int64_t bytes) const;
  /// Returns: the largest number of bytes that were in use
  int64_t peak_bytes() const;

 private:
  UnlinkedTempFile file_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  ///< offset → size; adjacent parts are merged
  int64_t end_ = 0;                  ///< end of the part that was ever used
  int64_t used_ = 0, peak_ = 0;
};

}  // namespace bellows::recompute::detail
