#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// True if the bytes start with the length of a record and the correct checksum of this length.
bool is_tfrecord_head(std::string_view bytes);

/// Appends one record in TFRecord format to `out`: length and data, each with a checksum.
void append_tfrecord(std::string& out, std::string_view data);

/// Returns the data of the record at `offset`, as a view into `bytes`.
/// Params: bytes – a TFRecord file
///         where – name of the file for error messages
/// Throws: c10::ValueError if a checksum is wrong, if there is no record at `offset`, or if the file ends within the
///         record (the message states the byte offset)
std::string_view tfrecord_at(std::string_view bytes, uint64_t offset, std::string_view where);

/// Iterates over the records of a TFRecord file in memory.
class TfrecordReader {
 public:
  /// Params: bytes – must outlive the reader
  ///         where – name of the file for error messages
  TfrecordReader(std::string_view bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  /// Returns the next record as a view into the bytes, or nothing at the end of the file.
  /// Throws: like tfrecord_at()
  std::optional<std::string_view> next();
  /// The offset of the next record.
  uint64_t offset() const { return offset_; }
  /// True if the rest of the bytes is a truncated record, whose length exceeds the number of remaining bytes.
  bool torn() const;

 private:
  std::string_view bytes_;
  std::string where_;
  uint64_t offset_ = 0;
};

/// The location of a record in its file.
struct TfrecordSpan {
  uint64_t offset = 0;
  uint64_t size = 0;  ///< size of the record with length and checksums, that is, 16 bytes more than the data

  bool operator==(const TfrecordSpan&) const = default;
};

/// Returns the locations of all records of a file.
/// Cost:   reads the length of each record, not its data
/// Throws: c10::ValueError if the checksum of a length is wrong, or if the file ends within a record (the message
///         states the byte offset)
std::vector<TfrecordSpan> scan_tfrecord(std::string_view bytes, std::string_view where);

/// Formats the index of a file as the tfrecord package and DALI do, with one line "OFFSET SIZE" per record.
std::string format_tfrecord_index(std::span<const TfrecordSpan> records);
/// Parses the index of a file and checks it against the file. The records must cover the complete file without gaps. Up
/// to 256 evenly spaced records are verified.
/// Params: index_where, where – names of the index and the file for error messages
/// Throws: c10::ValueError if the index is invalid or belongs to a different file (the message states the line, and the
///         expected and actual content)
std::vector<TfrecordSpan> parse_tfrecord_index(std::string_view index, std::string_view bytes,
                                               std::string_view index_where, std::string_view where);

/// Decompresses a file that is compressed as a whole, with gzip, zlib or another format of decompress(). Returns
/// nothing if the file is an uncompressed TFRecord file.
/// Throws: c10::ValueError under the same conditions as decompress()
std::optional<Bytes> unpack_tfrecord(ByteSpan file, std::string_view where);

}  // namespace bellows::io
