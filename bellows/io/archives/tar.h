#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// One regular file of a tar archive.
struct TarEntry {
  std::string name;
  ByteSpan data;        ///< a view into the archive; valid while the TarReader exists, also after a move
  uint64_t offset = 0;  ///< position of `data` in the (uncompressed) archive
};

/// Reads tar archives in the ustar format, with GNU long names and pax headers (path, size). Names can be up to 64 KiB
/// long. Folders, links and devices are skipped.
///
/// The file is mapped, and nothing is copied. An archive that is compressed by gzip, bzip2, xz, zstd or lz4 is first
/// decompressed into memory.
/// Threads: next() is not thread-safe, because it changes the position; all threads can use index() and the data of
///          entries
class TarReader {
 public:
  /// Throws: c10::ValueError if the file is missing, or if it is neither a tar archive nor a compressed tar archive
  explicit TarReader(const std::string& path);
  /// Params: bytes – an uncompressed archive; must outlive the reader
  ///         where – name of the archive for error messages
  TarReader(ByteSpan bytes, std::string where);

  /// Returns the next regular file, or nothing at the end of the archive.
  /// Throws: c10::ValueError if the archive is truncated or corrupt (the message states the path, the byte offset, and
  ///         the expected and actual content)
  std::optional<TarEntry> next();
  /// Moves the position back to the start.
  void rewind() { position_ = 0; }
  /// Returns all regular files, in order. The position of next() does not change.
  /// Throws: like next()
  std::vector<TarEntry> index() const;

  const std::string& path() const { return where_; }
  /// If other processes can change the file, call this function before you use the data of entries (see
  /// MappedFile::check_size()).
  /// Throws: c10::ValueError if the mapped file is shorter than when it was opened
  void check_size() const {
    if (file_) file_->check_size();
  }

 private:
  struct Extension;
  ByteSpan block_at(uint64_t offset) const;
  ByteSpan payload(ByteSpan header, const Extension& extension, uint64_t* next_header) const;
  std::optional<TarEntry> read(uint64_t* position) const;

  std::string where_;
  std::shared_ptr<const MappedFile> file_;  // null: the bytes are decompressed, or belong to the caller
  std::shared_ptr<const Bytes> unpacked_;
  ByteSpan bytes_;
  uint64_t position_ = 0;
};

/// True if the checksum of a header is correct.
/// Params: block – 512 bytes
bool is_tar_header(ByteSpan block);

/// Metadata that TarWriter writes for each member. The defaults are those of WebDataset, except that the time is fixed.
/// Equal content therefore gives equal bytes.
struct TarWriterOptions {
  uint32_t mode = 0444;
  std::string owner = "bigdata";  ///< name of the user and of the group
  uint64_t mtime = 0;             ///< seconds since 1970
};

/// Writes a ustar archive, padded to a multiple of 10,240 bytes. The file appears under its name when close() is
/// called. Pax headers store names that are too long for ustar, and sizes of 8 GiB or more.
class TarWriter {
 public:
  /// Throws: c10::Error if the folder is missing or not writable
  explicit TarWriter(const std::string& path, TarWriterOptions options = {});

  /// Throws: c10::ValueError if the name is empty or contains a NUL. c10::Error if writing fails, for example because
  ///         the disk is full
  void add(std::string_view name, ByteSpan data);
  void add(std::string_view name, std::string_view text) { add(name, as_bytes(text)); }
  /// The number of bytes written so far.
  uint64_t size() const { return file_.offset(); }
  /// Completes the archive and moves it into place. If close() is not called, no file remains.
  void close();

 private:
  void write_member(char type, std::string_view prefix, std::string_view name, ByteSpan data);

  AtomicFile file_;
  TarWriterOptions options_;
};

}  // namespace bellows::io
