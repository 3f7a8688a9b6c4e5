#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows {

/// A complete file, mapped into memory read-only.
/// Threads:  reading is safe from all threads. Reading beyond the end of a file that was truncated meanwhile raises
///           SIGBUS: write files with AtomicFile, and call check_size() before reading a file that other programs may
///           change
class MappedFile {
 public:
  /// Throws: c10::ValueError if the file is missing, unreadable or not a regular file (the message names the path and
  ///         the system's reason)
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Cost:   one system call
  /// Throws: c10::ValueError if the file is shorter now than when it was opened. A file that was replaced or removed
  ///         does not throw, because its data stay mapped
  void check_size() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  ///< identify the file
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Writes a file atomically: its name refers to either the old content or the complete new one, even after `kill -9` or
/// a power failure. It writes a temporary file in the same folder (`NAME.tmp-aB3xYz`), then calls fsync, renames the
/// file and calls fsync on the folder. Without commit(), nothing changes and the temporary file is deleted.
///
/// If the name is a symbolic link, the link's target is replaced. The new file gets the permissions of the replaced
/// file, and its owner and group if the system permits it; a new name follows the umask. Pipes and devices (/dev/null,
/// /dev/stdout) are written directly.
class AtomicFile {
 public:
  /// Throws: c10::Error if the folder is missing or not writable
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws: c10::Error if writing fails, for example because the disk is full (the message has path, offset and the
  ///         system's reason)
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Overwrites or reads back bytes before offset(). Only regular files support it.
  /// Throws: c10::Error if some of the bytes were not written yet, the target is not a regular file, or a disk error
  ///         occurs
  void overwrite(uint64_t offset, std::span<const std::byte> bytes);
  void read_back(uint64_t offset, std::span<std::byte> out) const;
  uint64_t offset() const { return offset_; }
  void commit();

 private:
  void open_temporary();
  void check_written(uint64_t offset, uint64_t size) const;

  std::string path_, temporary_;  ///< temporary_ is empty if the bytes go to path_ directly
  int fd_ = -1;
  uint64_t offset_ = 0;
};

/// Reads a small text file, or a pipe until its end. Throws like MappedFile.
std::string read_text_file(const std::string& path);
/// Throws like AtomicFile.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace bellows
