#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/io/archives/zip.h"
#include "bellows/io/crc32.h"

namespace bellows::io {

namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;

uint16_t u16(ByteSpan bytes, size_t offset) {
  return load_little<uint16_t>(bytes, offset);
}
uint32_t u32(ByteSpan bytes, size_t offset) {
  return load_little<uint32_t>(bytes, offset);
}
uint64_t u64(ByteSpan bytes, size_t offset) {
  return load_little<uint64_t>(bytes, offset);
}

/// Finds the end record: its comment, usually empty, must extend exactly to the end of the file.
std::optional<size_t> find_end(ByteSpan bytes) {
  if (bytes.size() < kEndSize) return std::nullopt;
  const size_t last = bytes.size() - kEndSize;
  for (size_t back = 0; back <= std::min<size_t>(last, 0xffff); ++back) {
    if (u32(bytes, last - back) == kEnd && u16(bytes, last - back + 20) == back) return last - back;
  }
  return std::nullopt;
}

/// Replaces each field whose bits are all ones by the next number of the zip64 extra field. Returns false if one is
/// missing.
bool resolve_zip64(ByteSpan extra, std::initializer_list<uint64_t*> fields) {
  ByteSpan numbers;
  while (extra.size() >= 4) {
    const size_t length = u16(extra, 2);
    if (length > extra.size() - 4) break;  // other writers' padding may be malformed
    if (u16(extra, 0) == 1) numbers = extra.subspan(4, length);
    extra = extra.subspan(4 + length);
  }
  for (uint64_t* field : fields) {
    if (*field != 0xffffffff) continue;
    if (numbers.size() < 8) return false;
    *field = u64(numbers, 0);
    numbers = numbers.subspan(8);
  }
  return true;
}

}  // namespace

ZipReader::ZipReader(ByteSpan bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {
  TORCH_CHECK_VALUE(as_text(bytes).starts_with("PK"), where_, ": expected a zip archive, found ",
                    describe_content(bytes), ".");
  const std::optional<size_t> end = find_end(bytes);
  TORCH_CHECK_VALUE(end, where_, ": the zip archive has no end record in its ", bytes.size(),
                    " bytes: the file is truncated, or other data was appended to it.");
  uint64_t count = u16(bytes, *end + 10), size = u32(bytes, *end + 12), offset = u32(bytes, *end + 16);
  uint64_t limit = *end;
  if (*end >= kLocatorSize && u32(bytes, *end - kLocatorSize) == kEnd64Locator) {
    const uint64_t end64 = u64(bytes, *end - kLocatorSize + 8);
    TORCH_CHECK_VALUE(
        *end >= kLocatorSize + kEnd64Size && end64 <= *end - kLocatorSize - kEnd64Size && u32(bytes, end64) == kEnd64,
        where_, ": expected a zip64 end record at byte ", end64, ", found none: the archive is corrupt.");
    count = u64(bytes, end64 + 32), size = u64(bytes, end64 + 40), offset = u64(bytes, end64 + 48);
    limit = end64;
  }
  TORCH_CHECK_VALUE(offset <= limit && size == limit - offset, where_, ": the zip directory should take ", size,
                    " bytes from byte ", offset, ", but its end record is at byte ", limit,
                    ": the archive is corrupt.");
  read_directory(offset, size, count);
}

void ZipReader::read_directory(uint64_t offset, uint64_t size, uint64_t count) {
  const uint64_t end = offset + size;
  TORCH_CHECK_VALUE(count <= size / kCentralSize, where_, ": the zip directory at byte ", offset, " should list ",
                    count, " files, which is too many for its ", size, " bytes.");
  entries_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) offset = read_entry(offset, end);
  TORCH_CHECK_VALUE(offset == end, where_, ": the zip directory lists ", count, " files and should end at byte ",
                    offset, ", but it ends at byte ", end, ": the archive is corrupt.");
}

/// Reads the directory entry at `offset` and the header before its data. Returns the start of the next entry.
uint64_t ZipReader::read_entry(uint64_t offset, uint64_t end) {
  const uint64_t left = end - offset;
  TORCH_CHECK_VALUE(left >= kCentralSize && u32(bytes_, offset) == kCentralHeader, where_,
                    ": expected an entry of the zip directory at byte ", offset, ": the archive is corrupt.");
  const uint64_t name_size = u16(bytes_, offset + 28), extra_size = u16(bytes_, offset + 30);
  const uint64_t length = kCentralSize + name_size + extra_size + u16(bytes_, offset + 32);
  TORCH_CHECK_VALUE(length <= left, where_, ": the entry at byte ", offset,
                    " exceeds the end of the zip directory at byte ", end, ": the archive is corrupt.");
  ZipEntry entry;
  entry.name = as_text(bytes_.subspan(offset + kCentralSize, name_size));
  const std::string shown = printable(entry.name, 100);
  const bool encrypted = (u16(bytes_, offset + 8) & 1) != 0;
  entry.stored = u16(bytes_, offset + 10) == 0 && !encrypted;
  entry.deflated = u16(bytes_, offset + 10) == 8 && !encrypted;
  entry.crc32 = u32(bytes_, offset + 16);
  uint64_t packed = u32(bytes_, offset + 20), size = u32(bytes_, offset + 24), header = u32(bytes_, offset + 42);
  TORCH_CHECK_VALUE(
      resolve_zip64(bytes_.subspan(offset + kCentralSize + name_size, extra_size), {&size, &packed, &header}) &&
          (size == packed || !entry.stored),
      where_, ": the sizes of ", shown, " at byte ", offset, " contradict each other: the archive is corrupt.");
  TORCH_CHECK_VALUE(
      header <= bytes_.size() && bytes_.size() - header >= kLocalSize && u32(bytes_, header) == kLocalHeader, where_,
      ": expected the header of ", shown, " at byte ", header, ": the archive is corrupt.");
  entry.offset = header + kLocalSize + u16(bytes_, header + 26) + u16(bytes_, header + 28);
  TORCH_CHECK_VALUE(entry.offset <= bytes_.size() && packed <= bytes_.size() - entry.offset, where_, ": ", shown,
                    " needs ", size, " bytes from byte ", entry.offset, ", but the archive has only ", bytes_.size(),
                    ": the archive is corrupt.");
  TORCH_CHECK_VALUE(as_text(bytes_.subspan(header + kLocalSize)).starts_with(entry.name), where_,
                    ": the header at byte ", header, " does not belong to ", shown,
                    ", which the directory lists there: the archive is corrupt.");
  entry.data = bytes_.subspan(entry.offset, packed);
  entry.size = size;
  TORCH_CHECK_VALUE(index_.emplace(entry.name, entries_.size()).second, where_, ": ", shown,
                    " occurs twice in the archive.");
  has_checksums_ |= entry.crc32 != 0;
  entries_.push_back(std::move(entry));
  return offset + length;
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void ZipReader::verify(const ZipEntry& entry) const {
  TORCH_CHECK_VALUE(entry.stored, where_, ": ", printable(entry.name, 100), " at byte ", entry.offset,
                    " is compressed or encrypted. Only uncompressed files, as torch.save writes them, are supported.");
  if (!has_checksums_) return;
  const uint32_t found = io::crc32(entry.data);
  TORCH_CHECK_VALUE(found == entry.crc32, where_, ": ", printable(entry.name, 100), " at byte ", entry.offset, " (",
                    entry.data.size(), " bytes) should have CRC-32 ", entry.crc32, " but has ", found,
                    ": the file is corrupt.");
}

}  // namespace bellows::io
