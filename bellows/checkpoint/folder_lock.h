#pragma once

#include <string>

namespace bellows::checkpoint {

/// Reserves a folder for one run with a lock (flock) on its file `.lock`. The file contains the process ID and host of
/// the process that holds the lock. The kernel releases the lock when this process ends for any reason; the file is not
/// deleted. If the file system does not support locks, a warning is logged.
class FolderLock {
 public:
  /// Throws: c10::Error if another run holds the lock (the message states its process ID and host), or if the file
  ///         cannot be written
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace bellows::checkpoint
