#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows {

/// A whole file, read only, mapped into memory.
/// Threads:  reading is safe from all threads. Bytes of a file that was cut short meanwhile raise SIGBUS: write with
///           AtomicFile, and call check_size() before reading what others may change.
class MappedFile {
 public:
  /// Throws: c10::ValueError – missing, unreadable, or not a regular file; names the path and the system's reason
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Cost:   one system call
  /// Throws: c10::ValueError – the file is shorter now than when it was opened. One that was replaced or removed is not:
  ///         its bytes live on
  void check_size() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  ///< which file it was
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Writes a file so that its name holds either the old content or the whole new one, also after kill -9 or a power
/// cut: a temporary file beside it (`NAME.tmp-aB3xYz`), fsync, rename, fsync of the folder. Without commit() nothing
/// changes and nothing stays behind. A symbolic link stays one: the file behind it is replaced. The new file has the
/// permissions of the replaced one, and its owner and group where the system permits it; a name that is new follows the
/// umask. What is no regular file (/dev/null, /dev/stdout, a pipe) is written to directly.
class AtomicFile {
 public:
  /// Throws: c10::Error – the folder is missing or not writable
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws: c10::Error – disk full and the like: path, offset, the system's reason
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Bytes that lie before offset(), anew or as they are. What is no regular file has none.
  /// Throws: c10::Error – not all of them were written yet; disk errors
  void overwrite(uint64_t offset, std::span<const std::byte> bytes);
  void read_back(uint64_t offset, std::span<std::byte> out) const;
  uint64_t offset() const { return offset_; }
  void commit();

 private:
  void open_temporary();
  void check_written(uint64_t offset, uint64_t size) const;

  std::string path_, temporary_;  ///< temporary_ is empty where the bytes go to path_ directly
  int fd_ = -1;
  uint64_t offset_ = 0;
};

/// The whole of a small text file, or all that comes out of a pipe. Throws as MappedFile does.
std::string read_text_file(const std::string& path);
/// Throws as AtomicFile does.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace bellows
