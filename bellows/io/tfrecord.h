#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bellows::io {

/// Appends one record to `out` as a TFRecord file holds it: length, data, and the checksum of each.
void append_tfrecord(std::string& out, std::string_view data);

/// Goes through the records of a TFRecord file in memory.
class TfrecordReader {
 public:
  /// Params: bytes – outlive the reader
  ///         where – names them in errors
  TfrecordReader(std::string_view bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  /// The next record, or nothing at the end. It points into the bytes.
  /// Throws: c10::ValueError – a checksum that is wrong, the end in the middle of a record: byte offset
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

}  // namespace bellows::io
