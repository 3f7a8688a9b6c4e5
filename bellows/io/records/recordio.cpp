#include "bellows/io/records/recordio.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <charconv>

namespace bellows::io {

namespace {

constexpr uint64_t part_head_bytes = 8;
constexpr uint32_t most_part_bytes = (1u << 29) - 1;
constexpr size_t image_head_bytes = 24;

/// The position of a part within its record.
enum class Role : uint32_t { whole, first, middle, last };

struct Part {
  Role role;
  ByteSpan data;
  uint64_t next;
};

bool is_first(Role role) {
  return role == Role::whole || role == Role::first;
}
bool is_last(Role role) {
  return role == Role::whole || role == Role::last;
}

Part part_at(ByteSpan bytes, uint64_t offset, std::string_view where, bool expect_first) {
  const ByteSpan rest = bytes.subspan(std::min<uint64_t>(offset, bytes.size()));
  TORCH_CHECK_VALUE(rest.size() >= part_head_bytes, where, ": expected a record header of 8 bytes at byte ", offset,
                    ", but the file has ", bytes.size(), " bytes. The file is truncated, or no record starts there.");
  const auto word = load_little<uint32_t>(rest, 4);
  const uint32_t flag = word >> 29, length = word & most_part_bytes;
  TORCH_CHECK_VALUE(load_little<uint32_t>(rest) == recordio_magic && flag <= 3, where,
                    ": expected a RecordIO record at byte ", offset, ", found ", describe_content(rest), ".");
  const auto role = static_cast<Role>(flag);
  TORCH_CHECK_VALUE(is_first(role) == expect_first, where, ": at byte ", offset, ", expected the ",
                    expect_first ? "beginning of a record" : "next part of a split record", ", found ",
                    expect_first ? "a later part of a record" : "the beginning of another record",
                    ". The file is damaged.");
  const uint64_t padded = (uint64_t{length} + 3) / 4 * 4;
  TORCH_CHECK_VALUE(padded <= rest.size() - part_head_bytes, where, ": the record at byte ", offset, " (", length,
                    " bytes) exceeds the end of the file (", bytes.size(), " bytes). The file is truncated.");
  return {role, rest.subspan(part_head_bytes, length), offset + part_head_bytes + padded};
}

void append_part(std::string& out, Role role, std::string_view data) {
  append_little(out, recordio_magic);
  append_little(out, static_cast<uint32_t>(role) << 29 | static_cast<uint32_t>(data.size()));
  out += data;
}

}  // namespace

void append_recordio(std::string& out, ByteSpan data) {
  TORCH_CHECK_VALUE(data.size() <= most_part_bytes, "RecordIO: a record has ", data.size(),
                    " bytes, but the limit of the format is 2^29. Split the sample, or choose another format.");
  size_t begin = 0;
  for (size_t i = 0; i + 4 <= data.size(); i += 4) {
    if (load_little<uint32_t>(data, i) != recordio_magic) continue;
    append_part(out, begin == 0 ? Role::first : Role::middle, as_text(data.subspan(begin, i - begin)));
    begin = i + 4;
  }
  append_part(out, begin == 0 ? Role::whole : Role::last, as_text(data.subspan(begin)));
  out.append((4 - data.size() % 4) % 4, '\0');
}

RecordioRecord recordio_at(ByteSpan bytes, uint64_t offset, std::string_view where, Bytes& joined) {
  Part part = part_at(bytes, offset, where, true);
  if (part.role == Role::whole) return {part.data, part.next};
  joined.assign(part.data.begin(), part.data.end());
  std::string magic;
  append_little(magic, recordio_magic);
  while (!is_last(part.role)) {
    part = part_at(bytes, part.next, where, false);
    joined.insert(joined.end(), as_bytes(magic).begin(), as_bytes(magic).end());
    joined.insert(joined.end(), part.data.begin(), part.data.end());
  }
  return {joined, part.next};
}

std::vector<uint64_t> scan_recordio(ByteSpan bytes, std::string_view where) {
  std::vector<uint64_t> offsets;
  for (uint64_t offset = 0; offset < bytes.size();) {
    offsets.push_back(offset);
    Part part = part_at(bytes, offset, where, true);
    while (!is_last(part.role)) part = part_at(bytes, part.next, where, false);
    offset = part.next;
  }
  return offsets;
}

std::vector<uint64_t> parse_recordio_index(std::string_view index, std::string_view where) {
  std::vector<uint64_t> offsets;
  for (size_t number = 1; !index.empty(); ++number) {
    std::string_view line = index.substr(0, index.find('\n'));
    index.remove_prefix(std::min(line.size() + 1, index.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string_view digits = line.substr(std::min(line.find('\t'), line.size() - 1) + 1);
    uint64_t offset = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), offset);
    TORCH_CHECK_VALUE(error == std::errc() && rest == digits.data() + digits.size(), where, ", line ", number,
                      ": expected a key, a tab and an offset, found ", printable(line),
                      ". To read the file without the index, remove the index.");
    offsets.push_back(offset);
  }
  return offsets;
}

ImageRecord parse_image_record(ByteSpan record) {
  TORCH_CHECK_VALUE(record.size() >= image_head_bytes,
                    "expected a record of an image header (24 bytes) and its content, found a record of ",
                    record.size(), " bytes.");
  ImageRecord image;
  image.flag = load_little<uint32_t>(record);
  image.label = std::bit_cast<float>(load_little<uint32_t>(record, 4));
  image.id = load_little<uint64_t>(record, 8);
  image.id2 = load_little<uint64_t>(record, 16);
  const ByteSpan rest = record.subspan(image_head_bytes);
  TORCH_CHECK_VALUE(image.flag <= rest.size() / 4, "expected ", image.flag, " labels of 4 bytes, found ", rest.size(),
                    " bytes after the image header: the record is damaged, or has no image header.");
  image.labels = rest.first(size_t{image.flag} * 4);
  image.content = rest.subspan(image.labels.size());
  return image;
}

std::string format_image_record(const ImageRecord& record) {
  TORCH_INTERNAL_ASSERT(record.labels.size() == size_t{record.flag} * 4);
  std::string out;
  append_little(out, record.flag);
  append_little(out, std::bit_cast<uint32_t>(record.label));
  append_little(out, record.id);
  append_little(out, record.id2);
  out += as_text(record.labels);
  out += as_text(record.content);
  return out;
}

}  // namespace bellows::io
