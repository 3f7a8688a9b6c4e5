#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// The little-endian number at the start of each part of a record.
constexpr uint32_t recordio_magic = 0xced7230a;

/// Appends one record in RecordIO format to `out`. If the data contains the format's magic number at a multiple of four
/// bytes, the record is split at this position. `out` must start at an offset in the file that is a multiple of four.
/// Throws: c10::ValueError if the data has 2^29 bytes or more
/// Ref:    dmlc-core/src/recordio.cc
void append_recordio(std::string& out, ByteSpan data);

/// One record of a RecordIO file.
struct RecordioRecord {
  ByteSpan data;
  uint64_t next = 0;  ///< offset of the next record
};

/// Returns the record at `offset`. Its data is a view into `bytes`, or into `joined` if the record is split.
/// Params: bytes – a RecordIO file
///         where – name of the file for error messages
///         joined – memory for the parts of a split record
/// Throws: c10::ValueError if there is no record at `offset`, if parts are missing, or if the file ends within the
///         record (the message states the byte offset)
RecordioRecord recordio_at(ByteSpan bytes, uint64_t offset, std::string_view where, Bytes& joined);

/// Returns the offsets of all records. Each record begins where the previous one ends. The last record ends at the end
/// of the file.
/// Cost:   reads 8 bytes per part
/// Throws: like recordio_at()
std::vector<uint64_t> scan_recordio(ByteSpan bytes, std::string_view where);

/// Parses the offsets in an .idx file, which has lines "KEY\tOFFSET".
/// Throws: c10::ValueError if a line does not have this format (the message states the line number)
std::vector<uint64_t> parse_recordio_index(std::string_view index, std::string_view where);

/// The content of a record that was written by MXNet's tools: labels and an image file.
struct ImageRecord {
  uint32_t flag = 0;  ///< 0: one label, in `label`; otherwise the number of labels after the header
  float label = 0;
  uint64_t id = 0, id2 = 0;
  ByteSpan labels;   ///< `flag` float32 values, possibly unaligned; empty if `flag` is 0
  ByteSpan content;  ///< the rest of the record, usually an image file
};

/// Throws: c10::ValueError if the record is too short for its header, or for its number of labels
/// Ref:    mxnet.recordio.unpack
ImageRecord parse_image_record(ByteSpan record);
/// Returns the bytes of the record. `labels` is used only if flag > 0.
std::string format_image_record(const ImageRecord& record);

}  // namespace bellows::io
