#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows {

/// A read-only memory mapping of a complete file. If another program truncates the file, reading beyond its new end
/// raises SIGBUS. To prevent this, write files with AtomicFile, and call check_size() before you read a file that other
/// programs may change.
/// Threads:  all threads can read the file
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
  /// Throws: c10::ValueError if the file is shorter now than when it was opened. If the file was replaced or removed,
  ///         the function does not throw, because the old data stays mapped
  void check_size() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  ///< device and inode number of the file
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Writes a file atomically: its name always refers to either the complete old content or the complete new content,
/// even after `kill -9` or a power failure. The class writes a temporary file in the same folder (`NAME.tmp-aB3xYz`),
/// calls fsync, renames the file, and calls fsync on the folder. If commit() was not called, the destructor deletes the
/// temporary file, and the old file does not change.
///
/// If the name is a symbolic link, the link's target is replaced. The new file gets the permissions of the replaced
/// file, and its owner and group if the system permits this. If there was no such file, the umask determines the
/// permissions. Pipes and devices (/dev/null, /dev/stdout) are written directly.
class AtomicFile {
 public:
  /// Throws: c10::Error if the folder is missing or not writable
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws: c10::Error if writing fails, for example because the disk is full (the message states the path, the offset
  ///         and the system's reason)
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// overwrite() replaces bytes before offset(), and read_back() reads them. Both functions require a regular file.
  /// Throws: c10::Error if some of the bytes are not written yet, if the target is not a regular file, or if a disk
  ///         error occurs
  void overwrite(uint64_t offset, std::span<const std::byte> bytes);
  void read_back(uint64_t offset, std::span<std::byte> out) const;
  uint64_t offset() const { return offset_; }
  void commit();

 private:
  void open_temporary();
  void check_written(uint64_t offset, uint64_t size) const;

  std::string path_, temporary_;  ///< temporary_ is empty if the bytes are written to path_ directly
  int fd_ = -1;
  uint64_t offset_ = 0;
};

/// Reads a small text file, or reads a pipe until its end. Throws the same exceptions as MappedFile.
std::string read_text_file(const std::string& path);
/// Writes a text file atomically. Throws the same exceptions as AtomicFile.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace bellows
