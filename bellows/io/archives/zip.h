#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// One file of a zip archive.
struct ZipEntry {
  std::string name;
  ByteSpan data;        ///< a view into the archive
  uint64_t offset = 0;  ///< position of `data` in the archive
  uint64_t size = 0;    ///< size of the uncompressed data
  uint32_t crc32 = 0;
  bool stored = true;     ///< false: `data` is compressed or encrypted
  bool deflated = false;  ///< `data` is a deflate stream and not encrypted; see inflate_raw()
};

/// Reads zip archives, including zip64. Only stored (uncompressed) files, such as those of torch.save, can be accessed
/// directly.
/// Threads: thread-safe
class ZipReader {
 public:
  /// Reads and checks the central directory.
  /// Params: bytes – the complete archive; must outlive the reader
  ///         where – name of the archive for error messages
  /// Throws: c10::ValueError if the archive is invalid (the message states `where`, the byte offset, and the expected
  ///         and actual content)
  ZipReader(ByteSpan bytes, std::string where);

  /// The files in the order of the central directory.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Returns the file with this name, or null if there is none.
  const ZipEntry* find(std::string_view name) const;
  /// Checks the data against its CRC-32. If all checksums of an archive are 0, it was written without checksums
  /// (torch.serialization.set_crc32_options(False)), and nothing is checked. ZipWriter always writes checksums.
  /// Throws: c10::ValueError if the data is compressed or does not match its checksum
  void verify(const ZipEntry& entry) const;

 private:
  void read_directory(uint64_t offset, uint64_t size, uint64_t count);
  uint64_t read_entry(uint64_t offset, uint64_t end);

  ByteSpan bytes_;
  std::string where_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string, size_t> index_;
  bool has_checksums_ = false;
};

/// Writes a zip archive with stored, aligned files. The archive appears under its name when close() is called.
class ZipWriter {
 public:
  /// Params: zip64_from – sizes and offsets of at least this value use zip64 fields; only tests set a smaller value
  explicit ZipWriter(const std::string& path, uint64_t zip64_from = 0xffffffff);

  /// Params: alignment – the data's offset in the archive is a multiple of this power of two
  void add(std::string_view name, ByteSpan data, size_t alignment = 64);
  void add(std::string_view name, std::string_view text) { add(name, as_bytes(text)); }
  /// Writes the central directory and moves the archive into place. If close() is not called, no file remains.
  void close();

 private:
  struct Record {
    std::string name;
    uint64_t offset, size;
    uint32_t crc32;
  };
  bool is_large(uint64_t value) const { return value >= zip64_from_; }
  std::string directory_entry(const Record& record) const;

  AtomicFile file_;
  uint64_t zip64_from_;
  std::vector<Record> records_;
};

}  // namespace bellows::io
