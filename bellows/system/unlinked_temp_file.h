#pragma once

#include <cstdint>
#include <string>

namespace bellows {

/// An unlinked temporary file for data that does not fit into memory. The system deletes it when the last descriptor is
/// closed and the last mapping removed, even after `kill -9`.
/// Threads: not thread-safe while grow() runs
class UnlinkedTempFile {
 public:
  /// Params: folder – if empty, $TMPDIR or /tmp. Some systems keep /tmp in memory
  ///         user – prefix of error messages: "offload"
  /// Throws: c10::Error if the folder is missing or not writable
  UnlinkedTempFile(std::string folder, std::string user);
  ~UnlinkedTempFile();
  UnlinkedTempFile(const UnlinkedTempFile&) = delete;
  UnlinkedTempFile& operator=(const UnlinkedTempFile&) = delete;

  /// Allocates disk space up to byte `end`, so that later writes cannot fail because the disk is full. On file systems
  /// without preallocation, it only checks the free space.
  /// Params: advice – end of the error message: an alternative for the user
  /// Throws: c10::Error if there is not enough space or `end` is beyond `ulimit -f` (with both figures); the file is
  ///         unchanged then
  void grow(int64_t end, const std::string& advice);
  /// On file systems without preallocation, writes zeros from byte `begin` to allocate the space.
  /// Cost:   that of writing; none if the space is preallocated
  /// Throws: like grow()
  void fill(int64_t begin, const std::string& advice);
  /// Whether growing to `end` bytes needs less than half of the available space and is allowed by `ulimit -f`.
  bool has_plenty(int64_t end) const;

  int64_t size() const { return size_; }
  int descriptor() const { return fd_; }
  const std::string& folder() const { return folder_; }

 private:
  /// Params: error – errno; 0 for none
  void check_room(int error, int64_t more, const std::string& advice) const;

  const std::string folder_, user_;
  int fd_ = -1;
  int64_t size_ = 0;
  bool promised_ = true;  ///< the file system preallocated the space
};

}  // namespace bellows
