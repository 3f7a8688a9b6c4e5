#include "bellows/io/records/tfrecord.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>

#include "bellows/io/archives/decompress.h"
#include "bellows/io/crc32.h"

namespace bellows::io {

namespace {

constexpr size_t head_bytes = 12;  // length and its checksum
constexpr size_t tail_bytes = 4;   // the data's checksum
constexpr size_t frame_bytes = head_bytes + tail_bytes;
constexpr size_t most_checked = 256;

/// Rotated and offset, so that checksums of data that contains checksums stay strong.
uint32_t masked_crc(std::string_view data) {
  const uint32_t crc = crc32c(as_bytes(data));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// True if the rest is the start of a record, but not all of it.
bool is_torn(std::string_view rest) {
  if (rest.size() < head_bytes) return !rest.empty();
  return is_tfrecord_head(rest) &&
         (rest.size() < frame_bytes || load_little<uint64_t>(as_bytes(rest)) > rest.size() - frame_bytes);
}

/// The length of the record's data, after checking that the record is complete.
size_t length_at(std::string_view bytes, uint64_t offset, std::string_view where) {
  const std::string_view rest = bytes.substr(std::min<uint64_t>(offset, bytes.size()));
  TORCH_CHECK_VALUE(!rest.empty(), where, ": expected a record at byte ", offset, ", but the file has ", bytes.size(),
                    ".");
  TORCH_CHECK_VALUE(!is_torn(rest), where, ": the record at byte ", offset, " exceeds the end of the file (",
                    bytes.size(), " bytes). The file is truncated.");
  TORCH_CHECK_VALUE(is_tfrecord_head(rest), where, ": expected a record at byte ", offset, ", found ",
                    describe_content(as_bytes(rest)), ": the checksum of its length does not match.");
  return static_cast<size_t>(load_little<uint64_t>(as_bytes(rest)));
}

}  // namespace

bool is_tfrecord_head(std::string_view bytes) {
  return bytes.size() >= head_bytes && load_little<uint32_t>(as_bytes(bytes), 8) == masked_crc(bytes.substr(0, 8));
}

void append_tfrecord(std::string& out, std::string_view data) {
  const size_t start = out.size();
  append_little<uint64_t>(out, data.size());
  append_little(out, masked_crc(std::string_view(out).substr(start)));
  out += data;
  append_little(out, masked_crc(data));
}

std::string_view tfrecord_at(std::string_view bytes, uint64_t offset, std::string_view where) {
  const size_t length = length_at(bytes, offset, where);
  const std::string_view record = bytes.substr(offset, length + frame_bytes);
  const std::string_view data = record.substr(head_bytes, length);
  TORCH_CHECK_VALUE(load_little<uint32_t>(as_bytes(record), head_bytes + length) == masked_crc(data), where,
                    ": the record at byte ", offset, " (", length, " bytes) is damaged: its checksum does not match.");
  return data;
}

bool TfrecordReader::torn() const {
  return is_torn(bytes_.substr(offset_));
}

std::optional<std::string_view> TfrecordReader::next() {
  if (offset_ == bytes_.size()) return {};
  const std::string_view data = tfrecord_at(bytes_, offset_, where_);
  offset_ += data.size() + frame_bytes;
  return data;
}

std::vector<TfrecordSpan> scan_tfrecord(std::string_view bytes, std::string_view where) {
  std::vector<TfrecordSpan> records;
  for (uint64_t offset = 0; offset < bytes.size(); offset += records.back().size)
    records.push_back({offset, length_at(bytes, offset, where) + frame_bytes});
  return records;
}

std::string format_tfrecord_index(std::span<const TfrecordSpan> records) {
  std::string text;
  for (const auto& [offset, size] : records) text += std::to_string(offset) + " " + std::to_string(size) + "\n";
  return text;
}

namespace {

/// Parses the line's two numbers; returns false for other lines.
bool parse_span(std::string_view line, TfrecordSpan& span) {
  const char* end = line.data() + line.size();
  const auto [space, offset_error] = std::from_chars(line.data(), end, span.offset);
  if (offset_error != std::errc() || space == end || *space != ' ') return false;
  const auto [rest, size_error] = std::from_chars(space + 1, end, span.size);
  return size_error == std::errc() && std::all_of(rest, end, [](char c) { return c == ' ' || c == '\r'; });
}

}  // namespace

std::vector<TfrecordSpan> parse_tfrecord_index(std::string_view index, std::string_view bytes,
                                               std::string_view index_where, std::string_view where) {
  std::vector<TfrecordSpan> records;
  uint64_t end = 0;
  while (!index.empty()) {
    const std::string_view line = index.substr(0, index.find('\n'));
    index.remove_prefix(std::min(line.size() + 1, index.size()));
    TfrecordSpan span;
    TORCH_CHECK_VALUE(parse_span(line, span), index_where, ", line ", records.size() + 1,
                      ": expected \"OFFSET SIZE\", found ", printable(line),
                      ". To read the file without the index, remove the index.");
    TORCH_CHECK_VALUE(span.offset == end && span.size >= frame_bytes && span.size <= bytes.size() - end, index_where,
                      ", line ", records.size() + 1, ": expected a record at byte ", end, " of ", where, " (",
                      bytes.size(), " bytes), found a record of ", span.size, " bytes at byte ", span.offset,
                      ". The index belongs to another file. Recreate it, or remove it.");
    end += span.size;
    records.push_back(span);
  }
  TORCH_CHECK_VALUE(end == bytes.size(), index_where, ": the index ends at byte ", end, " of ", where,
                    ", but the file has ", bytes.size(),
                    ". The index belongs to another file. Recreate it, or remove it.");
  const size_t step = std::max<size_t>(records.size() / most_checked, 1);
  for (size_t i = 0; i < records.size(); i += step) {
    const auto& [offset, size] = records[i];
    TORCH_CHECK_VALUE(is_tfrecord_head(bytes.substr(offset)) && length_at(bytes, offset, where) + frame_bytes == size,
                      index_where, ", line ", i + 1, ": there is no record of ", size, " bytes at byte ", offset,
                      " of ", where,
                      ". The index belongs to another file, or the file is damaged. Recreate the index, or remove it.");
  }
  return records;
}

std::optional<Bytes> unpack_tfrecord(ByteSpan file, std::string_view where) {
  // A record's length may look like the start of a compressed file, but its checksum would not match.
  if (file.empty() || is_tfrecord_head(as_text(file))) return {};
  const uint64_t most = most_unpacked_bytes(file.size());
  if (detect_compression(file) != Compression::none) return decompress(file, where, most);
  if (is_zlib(file)) return decompress_zlib(file, where, most);
  return {};
}

}  // namespace bellows::io
