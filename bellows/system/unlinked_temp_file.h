#pragma once

#include <cstdint>
#include <string>

namespace bellows {

/// An unlinked temporary file for data that does not fit into memory. The system deletes the file when its last
/// descriptor is closed and its last mapping is removed, even after `kill -9`.
/// Threads: do not use the object on other threads while grow() runs
class UnlinkedTempFile {
 public:
  /// Params: folder – folder in which the file is created. If empty, $TMPDIR is used, or /tmp if TMPDIR is not set. On
  ///                  some systems, /tmp is in memory
  ///         user – prefix of error messages, such as "offload"
  /// Throws: c10::Error if the folder is missing or not writable
  UnlinkedTempFile(std::string folder, std::string user);
  ~UnlinkedTempFile();
  UnlinkedTempFile(const UnlinkedTempFile&) = delete;
  UnlinkedTempFile& operator=(const UnlinkedTempFile&) = delete;

  /// Allocates disk space up to byte `end`, so that later writes cannot fail because the disk is full. On file systems
  /// without preallocation, the function only checks the free space.
  /// Params: advice – an alternative for the user, which is added to the error message
  /// Throws: c10::Error if there is not enough space, or if `end` is beyond `ulimit -f` (the message states the
  ///         required and the available size). The file is then unchanged
  void grow(int64_t end, const std::string& advice);
  /// On file systems without preallocation, writes zeros from byte `begin` to the end of the file to allocate the
  /// space.
  /// Cost:   the time to write these bytes; nothing if the space is preallocated
  /// Throws: like grow()
  void fill(int64_t begin, const std::string& advice);
  /// Returns whether growing to `end` bytes needs less than half of the available space and `ulimit -f` permits it.
  bool has_plenty(int64_t end) const;

  int64_t size() const { return size_; }
  int descriptor() const { return fd_; }
  const std::string& folder() const { return folder_; }

 private:
  /// Params: error – errno, or 0 for no error
  void check_room(int error, int64_t more, const std::string& advice) const;

  const std::string folder_, user_;
  int fd_ = -1;
  int64_t size_ = 0;
  bool promised_ = true;  ///< the file system preallocated the space
};

}  // namespace bellows
