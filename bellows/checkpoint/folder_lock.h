#pragma once

#include <string>

namespace bellows::checkpoint {

/// Reserves a folder for one run with a lock (flock) on its file `.lock`, which contains process and host of the
/// holder. The kernel releases the lock when the process ends for any reason; the file stays. If the file system does
/// not support locks, a warning is logged.
class FolderLock {
 public:
  /// Throws: c10::Error if another run holds the lock (the message has its process and host) or the file cannot be
  ///         written
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace bellows::checkpoint
