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
  ByteSpan data;        ///< points into the archive: valid as long as the TarReader (and its moves) live
  uint64_t offset = 0;  ///< of `data` from the start of the (uncompressed) archive
};

/// Reads tar archives: ustar, GNU long names, pax headers (path, size); names up to 64 KiB. Folders, links and devices
/// are passed over.
///
/// The file is mapped and nothing is copied; an archive compressed by gzip, bzip2, xz, zstd or lz4 is unpacked into
/// memory first.
/// Threads:  next() moves a position; index() and the data of entries may be used from all threads.
class TarReader {
 public:
  /// Throws: c10::ValueError – missing, or neither a tar archive nor a compressed one
  explicit TarReader(const std::string& path);
  /// Params: bytes – an uncompressed archive that outlives the reader
  ///         where – names it in errors
  TarReader(ByteSpan bytes, std::string where);

  /// The next regular file, or nothing at the end of the archive.
  /// Throws: c10::ValueError – truncated or corrupt: path, byte offset, what was expected and found
  std::optional<TarEntry> next();
  /// Starts again.
  void rewind() { position_ = 0; }
  /// All regular files, in order; does not move the position of next(). Throws as next() does.
  std::vector<TarEntry> index() const;

  const std::string& path() const { return where_; }
  /// Call it before the data of entries are used where others may change the file: see MappedFile::check_size.
  /// Throws: c10::ValueError – the mapped file is shorter now than when it was opened
  void check_size() const {
    if (file_) file_->check_size();
  }

 private:
  struct Extension;
  ByteSpan block_at(uint64_t offset) const;
  ByteSpan payload(ByteSpan header, const Extension& extension, uint64_t* next_header) const;
  std::optional<TarEntry> read(uint64_t* position) const;

  std::string where_;
  std::shared_ptr<const MappedFile> file_;  // null: the bytes are unpacked, or the caller's
  std::shared_ptr<const Bytes> unpacked_;
  ByteSpan bytes_;
  uint64_t position_ = 0;
};

/// Whether a header's checksum fits it.
/// Params: block – 512 bytes
bool is_tar_header(ByteSpan block);

/// What TarWriter says about every member. The defaults are WebDataset's, with a fixed time: equal content, equal
/// bytes.
struct TarWriterOptions {
  uint32_t mode = 0444;
  std::string owner = "bigdata";  ///< user and group
  uint64_t mtime = 0;             ///< seconds since 1970
};

/// Writes a ustar archive, padded to 10,240 bytes; the file appears under its name only by close().
/// Names longer than ustar's fields and sizes of 8 GiB and more go into pax headers.
class TarWriter {
 public:
  /// Throws: c10::Error – the folder is missing or not writable
  explicit TarWriter(const std::string& path, TarWriterOptions options = {});

  /// Throws: c10::ValueError – the name is empty or holds a NUL; c10::Error – disk full and the like
  void add(std::string_view name, ByteSpan data);
  void add(std::string_view name, std::string_view text) { add(name, as_bytes(text)); }
  /// Bytes written so far.
  uint64_t size() const { return file_.offset(); }
  /// Ends the archive and puts it in place. Without it, nothing is left behind.
  void close();

 private:
  void write_member(char type, std::string_view prefix, std::string_view name, ByteSpan data);

  AtomicFile file_;
  TarWriterOptions options_;
};

}  // namespace bellows::io
