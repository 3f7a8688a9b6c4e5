#pragma once

#include <string>

namespace bellows::checkpoint {

/// Keeps a folder for one run: a lock (flock) on its file `.lock`, in which process and host are written for whoever
/// comes next. The kernel releases it however the process ends; the file stays. Where the file system has no locks, a
/// warning says so.
class FolderLock {
 public:
  /// Throws: c10::Error – another run holds it (its process and host); the file cannot be written
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace bellows::checkpoint
