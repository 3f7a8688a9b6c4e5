#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// A record's length and its checksum begin the bytes.
bool is_tfrecord_head(std::string_view bytes);

/// Appends one record to `out` as a TFRecord file holds it: length, data, and the checksum of each.
void append_tfrecord(std::string& out, std::string_view data);

/// The data of the record that starts at `offset`. It points into the bytes.
/// Params: bytes – a TFRecord file
///         where – names them in errors
/// Throws: c10::ValueError – a checksum that is wrong, no record there, the end in the middle of it: byte offset
std::string_view tfrecord_at(std::string_view bytes, uint64_t offset, std::string_view where);

/// Goes through the records of a TFRecord file in memory.
class TfrecordReader {
 public:
  /// Params: bytes – outlive the reader
  ///         where – names them in errors
  TfrecordReader(std::string_view bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  /// The next record, or nothing at the end. It points into the bytes.
  /// Throws: as tfrecord_at
  std::optional<std::string_view> next();
  /// Where the next record starts.
  uint64_t offset() const { return offset_; }
  /// The rest is the beginning of a record that was cut off: its length says more than there is.
  bool torn() const;

 private:
  std::string_view bytes_;
  std::string where_;
  uint64_t offset_ = 0;
};

/// Where a record lies in its file.
struct TfrecordSpan {
  uint64_t offset = 0;
  uint64_t size = 0;  ///< with its length and checksums: 16 bytes more than the data

  bool operator==(const TfrecordSpan&) const = default;
};

/// All records of a file.
/// Cost:   reads the length of each record, not its data
/// Throws: c10::ValueError – a length's checksum that is wrong, a file that ends in the middle of a record: byte offset
std::vector<TfrecordSpan> scan_tfrecord(std::string_view bytes, std::string_view where);

/// The index of a file as the tfrecord package and DALI write it: a line "OFFSET SIZE" a record.
std::string format_tfrecord_index(std::span<const TfrecordSpan> records);
/// Reads such an index and holds it against its file: the records have to follow each other from the first byte to the
/// last, and up to 256 of them, evenly spread, are looked at.
/// Params: index_where, where – name the index and the file in errors
/// Throws: c10::ValueError – no such index, or one of another file: line, what was expected and found
std::vector<TfrecordSpan> parse_tfrecord_index(std::string_view index, std::string_view bytes,
                                               std::string_view index_where, std::string_view where);

/// The content of a file that was compressed as a whole (gzip, zlib, and what else decompress() knows); nothing when it
/// is a TFRecord file as it stands.
/// Throws: c10::ValueError – as decompress()
std::optional<Bytes> unpack_tfrecord(ByteSpan file, std::string_view where);

}  // namespace bellows::io
