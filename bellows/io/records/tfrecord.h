#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// True if the bytes start with a record's length and its checksum.
bool is_tfrecord_head(std::string_view bytes);

/// Appends one record in TFRecord format to `out`: length, data, and the checksum of each.
void append_tfrecord(std::string& out, std::string_view data);

/// Returns the data of the record at `offset`, as a view into `bytes`.
/// Params: bytes – a TFRecord file
///         where – names them in errors
/// Throws: c10::ValueError if a checksum is wrong, if there is no record or if the file ends within it; the message
///         names the byte offset
std::string_view tfrecord_at(std::string_view bytes, uint64_t offset, std::string_view where);

/// Iterates over the records of a TFRecord file in memory.
class TfrecordReader {
 public:
  /// Params: bytes – must outlive the reader
  ///         where – names them in errors
  TfrecordReader(std::string_view bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  /// Returns the next record, as a view into the bytes, or nothing at the end.
  /// Throws: as tfrecord_at
  std::optional<std::string_view> next();
  /// Offset of the next record.
  uint64_t offset() const { return offset_; }
  /// True if the rest is a truncated record: its length exceeds the remaining bytes.
  bool torn() const;

 private:
  std::string_view bytes_;
  std::string where_;
  uint64_t offset_ = 0;
};

/// The location of a record in its file.
struct TfrecordSpan {
  uint64_t offset = 0;
  uint64_t size = 0;  ///< including its length and checksums: 16 bytes more than the data

  bool operator==(const TfrecordSpan&) const = default;
};

/// Returns the locations of all records of a file.
/// Cost:   reads the length of each record, not its data
/// Throws: c10::ValueError if the checksum of a length is wrong or the file ends within a record; the message names the
///         byte offset
std::vector<TfrecordSpan> scan_tfrecord(std::string_view bytes, std::string_view where);

/// Formats the index of a file like the tfrecord package and DALI: a line "OFFSET SIZE" per record.
std::string format_tfrecord_index(std::span<const TfrecordSpan> records);
/// Parses such an index and checks it against its file: the records must follow each other from the first byte to the
/// last, and up to 256 evenly spaced ones are verified.
/// Params: index_where, where – name the index and the file in errors
/// Throws: c10::ValueError if the index is invalid or belongs to another file; the message names the line, what was
///         expected and what was found
std::vector<TfrecordSpan> parse_tfrecord_index(std::string_view index, std::string_view bytes,
                                               std::string_view index_where, std::string_view where);

/// Decompresses a file that was compressed as a whole (gzip, zlib, and the other formats of decompress()). Returns
/// nothing if the file is an uncompressed TFRecord file.
/// Throws: c10::ValueError as decompress()
std::optional<Bytes> unpack_tfrecord(ByteSpan file, std::string_view where);

}  // namespace bellows::io
