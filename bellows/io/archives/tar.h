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
  ByteSpan data;        ///< a view into the archive: valid as long as the TarReader (also after a move) exists
  uint64_t offset = 0;  ///< of `data` from the start of the (uncompressed) archive
};

/// Reads tar archives: ustar, GNU long names, pax headers (path, size); names up to 64 KiB. Skips folders, links and
/// devices.
///
/// The file is mapped and nothing is copied. An archive compressed by gzip, bzip2, xz, zstd or lz4 is decompressed into
/// memory first.
/// Threads: next() changes the position; index() and the data of entries may be used from all threads
class TarReader {
 public:
  /// Throws: c10::ValueError if the file is missing or is neither a tar archive nor a compressed one
  explicit TarReader(const std::string& path);
  /// Params: bytes – an uncompressed archive that outlives the reader
  ///         where – names it in errors
  TarReader(ByteSpan bytes, std::string where);

  /// Returns the next regular file, or nothing at the end of the archive.
  /// Throws: c10::ValueError if the archive is truncated or corrupt; the message names the path and the byte offset,
  ///         what was expected and what was found
  std::optional<TarEntry> next();
  /// Moves back to the start.
  void rewind() { position_ = 0; }
  /// Returns all regular files, in order. Does not change the position of next().
  /// Throws: as next()
  std::vector<TarEntry> index() const;

  const std::string& path() const { return where_; }
  /// Call it before using the data of entries if other processes may change the file; see MappedFile::check_size.
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
  std::shared_ptr<const MappedFile> file_;  // null: the bytes are decompressed, or the caller's
  std::shared_ptr<const Bytes> unpacked_;
  ByteSpan bytes_;
  uint64_t position_ = 0;
};

/// True if the checksum of a header matches.
/// Params: block – 512 bytes
bool is_tar_header(ByteSpan block);

/// Metadata of all members that TarWriter writes. The defaults are WebDataset's with a fixed time, so that equal
/// content gives equal bytes.
struct TarWriterOptions {
  uint32_t mode = 0444;
  std::string owner = "bigdata";  ///< user and group
  uint64_t mtime = 0;             ///< seconds since 1970
};

/// Writes a ustar archive, padded to a multiple of 10,240 bytes. The file appears under its name when close() is
/// called. Names longer than ustar's fields and sizes of 8 GiB and more go into pax headers.
class TarWriter {
 public:
  /// Throws: c10::Error if the folder is missing or not writable
  explicit TarWriter(const std::string& path, TarWriterOptions options = {});

  /// Throws: c10::ValueError if the name is empty or contains a NUL; c10::Error if writing fails, for example because
  ///         the disk is full
  void add(std::string_view name, ByteSpan data);
  void add(std::string_view name, std::string_view text) { add(name, as_bytes(text)); }
  /// Bytes written so far.
  uint64_t size() const { return file_.offset(); }
  /// Completes the archive and moves it into place. Without this call, no file remains.
  void close();

 private:
  void write_member(char type, std::string_view prefix, std::string_view name, ByteSpan data);

  AtomicFile file_;
  TarWriterOptions options_;
};

}  // namespace bellows::io
