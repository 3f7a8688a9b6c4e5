#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows {

/// A whole file, read only, mapped into memory.
/// Threads:  reading is safe from all threads. A file that is cut short while it is mapped raises SIGBUS: write with
///           AtomicFile.
class MappedFile {
 public:
  /// Throws: c10::ValueError – missing, a directory, or unreadable; names the path and the system's reason
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Writes a file so that its name holds either the old content or the whole new one, also after kill -9 or a power
/// cut: a temporary file beside it, fsync, rename, fsync of the folder. Without commit() nothing changes and nothing
/// stays behind.
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
  uint64_t offset() const { return offset_; }
  void commit();

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t offset_ = 0;
};

/// The whole of a small text file. Throws as MappedFile does.
std::string read_text_file(const std::string& path);
/// Throws as AtomicFile does.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace bellows
