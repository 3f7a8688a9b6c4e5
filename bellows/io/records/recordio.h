#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Begins each part of a record, as a little-endian number.
constexpr uint32_t recordio_magic = 0xced7230a;

/// Appends one record to `out` as a RecordIO file holds it; where the data have the format's magic number at a multiple
/// of four bytes, the record is split there. `out` begins at a multiple of four bytes of the file.
/// Throws: c10::ValueError – 2^29 bytes and more
/// Ref:    dmlc-core/src/recordio.cc
void append_recordio(std::string& out, ByteSpan data);

/// One record of a RecordIO file.
struct RecordioRecord {
  ByteSpan data;
  uint64_t next = 0;  ///< where the one behind it starts
};

/// The record that starts at `offset`. It points into the bytes, or into `joined` where it was split.
/// Params: bytes  – a RecordIO file
///         where  – names them in errors
///         joined – memory for the parts of a split record
/// Throws: c10::ValueError – no record there, parts missing, the end in the middle of it: byte offset
RecordioRecord recordio_at(ByteSpan bytes, uint64_t offset, std::string_view where, Bytes& joined);

/// Where the records of a file start. Each begins where the one before ends, the last ends with the file.
/// Cost:   reads 8 bytes a part
/// Throws: as recordio_at
std::vector<uint64_t> scan_recordio(ByteSpan bytes, std::string_view where);

/// The offsets in an .idx file: lines "KEY\tOFFSET".
/// Throws: c10::ValueError – another line: its number
std::vector<uint64_t> parse_recordio_index(std::string_view index, std::string_view where);

/// What MXNet's tools put into a record: labels and a picture's file.
struct ImageRecord {
  uint32_t flag = 0;  ///< 0: there is one label, here; otherwise the number of labels behind the header
  float label = 0;
  uint64_t id = 0, id2 = 0;
  ByteSpan labels;   ///< with flag > 0: so many float32, which need not be aligned
  ByteSpan content;  ///< the rest, a picture's file most often
};

/// Throws: c10::ValueError – too short for its header or for as many labels as it announces
/// Ref:    mxnet.recordio.unpack
ImageRecord parse_image_record(ByteSpan record);
/// The record's bytes. `labels` counts where flag > 0.
std::string format_image_record(const ImageRecord& record);

}  // namespace bellows::io
