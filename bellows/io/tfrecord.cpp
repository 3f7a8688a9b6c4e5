#include "bellows/io/tfrecord.h"

#include <c10/util/Exception.h>

#include "bellows/io/bytes.h"
#include "bellows/io/crc32.h"

namespace bellows::io {

namespace {

constexpr size_t head_bytes = 12;  // length and its checksum
constexpr size_t tail_bytes = 4;   // the data's checksum

/// Rotated and shifted, so that the checksum of data which holds checksums stays a good one.
uint32_t masked_crc(std::string_view data) {
  const uint32_t crc = crc32c(as_bytes(data));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace

void append_tfrecord(std::string& out, std::string_view data) {
  const size_t start = out.size();
  append_little<uint64_t>(out, data.size());
  append_little(out, masked_crc(std::string_view(out).substr(start)));
  out += data;
  append_little(out, masked_crc(data));
}

bool TfrecordReader::torn() const {
  const std::string_view rest = bytes_.substr(offset_);
  if (rest.empty()) return false;
  if (rest.size() < head_bytes) return true;
  const ByteSpan head = as_bytes(rest);
  const auto length = load_little<uint64_t>(head);
  return load_little<uint32_t>(head, 8) == masked_crc(rest.substr(0, 8)) &&
         (rest.size() < head_bytes + tail_bytes || length > rest.size() - head_bytes - tail_bytes);
}

std::optional<std::string_view> TfrecordReader::next() {
  const std::string_view rest = bytes_.substr(offset_);
  if (rest.empty()) return {};
  TORCH_CHECK_VALUE(!torn(), where_, ": the record at byte ", offset_, " ends after the file does (", bytes_.size(),
                    " bytes). The file was cut short.");
  const ByteSpan head = as_bytes(rest);
  TORCH_CHECK_VALUE(load_little<uint32_t>(head, 8) == masked_crc(rest.substr(0, 8)), where_, ": at byte ", offset_,
                    " a record was expected, found ", describe_content(head), ": the checksum of its length is wrong.");
  const auto length = static_cast<size_t>(load_little<uint64_t>(head));
  const std::string_view data = rest.substr(head_bytes, length);
  TORCH_CHECK_VALUE(load_little<uint32_t>(head, head_bytes + length) == masked_crc(data), where_,
                    ": the record at byte ", offset_, " (", length, " bytes) is damaged: its checksum is wrong.");
  offset_ += head_bytes + length + tail_bytes;
  return data;
}

}  // namespace bellows::io
