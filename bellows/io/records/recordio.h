#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// The start of each part of a record, as a little-endian number.
constexpr uint32_t recordio_magic = 0xced7230a;

/// Appends one record in RecordIO format to `out`. If the data contains the format's magic number at a multiple of four
/// bytes, the record is split there. `out` must start at a multiple of four bytes of the file.
/// Throws: c10::ValueError if the data has 2^29 bytes or more
/// Ref:    dmlc-core/src/recordio.cc
void append_recordio(std::string& out, ByteSpan data);

/// One record of a RecordIO file.
struct RecordioRecord {
  ByteSpan data;
  uint64_t next = 0;  ///< offset of the next record
};

/// Returns the record at `offset`, as a view into `bytes`, or into `joined` if it was split.
/// Params: bytes – a RecordIO file
///         where – names them in errors
///         joined – memory for the parts of a split record
/// Throws: c10::ValueError if there is no record, if parts are missing or if the file ends within it; the message names
///         the byte offset
RecordioRecord recordio_at(ByteSpan bytes, uint64_t offset, std::string_view where, Bytes& joined);

/// Returns the offsets of all records. Each begins where the previous one ends, and the last ends with the file.
/// Cost:   reads 8 bytes per part
/// Throws: as recordio_at
std::vector<uint64_t> scan_recordio(ByteSpan bytes, std::string_view where);

/// Parses the offsets of an .idx file: lines "KEY\tOFFSET".
/// Throws: c10::ValueError if a line has another format (the message names its number)
std::vector<uint64_t> parse_recordio_index(std::string_view index, std::string_view where);

/// The content of a record written by MXNet's tools: labels and an image file.
struct ImageRecord {
  uint32_t flag = 0;  ///< 0: one label, in `label`; otherwise the number of labels after the header
  float label = 0;
  uint64_t id = 0, id2 = 0;
  ByteSpan labels;   ///< if flag > 0: that many float32, may be unaligned
  ByteSpan content;  ///< the rest, usually an image file
};

/// Throws: c10::ValueError if the record is too short for its header or its number of labels
/// Ref:    mxnet.recordio.unpack
ImageRecord parse_image_record(ByteSpan record);
/// Returns the record's bytes. `labels` is used only if flag > 0.
std::string format_image_record(const ImageRecord& record);

}  // namespace bellows::io
