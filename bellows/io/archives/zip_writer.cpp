#include <c10/util/Exception.h>

#include "bellows/io/archives/zip.h"
#include "bellows/io/crc32.h"

namespace bellows::io {

namespace {

constexpr uint16_t kStoredVersion = 20, kZip64Version = 45;
constexpr uint16_t kUtf8Names = 1 << 11;
constexpr uint16_t kZip64Extra = 1, kPaddingExtra = 0x4246;  // "FB", the padding of PyTorch's own writer
constexpr uint16_t kFirstOfJanuary1980 = 1 << 5 | 1;

/// The common fields of local and central headers, from the version to the uncompressed size.
std::string common_fields(bool large, uint32_t crc, uint64_t size) {
  std::string out;
  append_little<uint16_t>(out, large ? kZip64Version : kStoredVersion);
  append_little<uint16_t>(out, kUtf8Names);
  append_little<uint16_t>(out, 0);  // stored
  append_little<uint16_t>(out, 0);  // time
  append_little<uint16_t>(out, kFirstOfJanuary1980);
  append_little<uint32_t>(out, crc);
  const uint32_t shown = large ? 0xffffffff : static_cast<uint32_t>(size);
  append_little<uint32_t>(out, shown);
  append_little<uint32_t>(out, shown);
  return out;
}

}  // namespace

ZipWriter::ZipWriter(const std::string& path, uint64_t zip64_from) : file_(path), zip64_from_(zip64_from) {}

void ZipWriter::add(std::string_view name, ByteSpan data, size_t alignment) {
  TORCH_CHECK_VALUE(!name.empty() && name.size() <= 0xffff, "ZipWriter: expected a name of 1 to 65535 bytes, found ",
                    name.size(), ".");
  const Record record{std::string(name), file_.offset(), data.size(), io::crc32(data)};
  const bool large = is_large(record.size);
  std::string extra;
  if (large) {
    append_little<uint16_t>(extra, kZip64Extra);
    append_little<uint16_t>(extra, 16);
    append_little<uint64_t>(extra, record.size);
    append_little<uint64_t>(extra, record.size);
  }
  const uint64_t unpadded = record.offset + 30 + name.size() + extra.size() + 4;
  const uint64_t padding = (alignment - unpadded % alignment) % alignment;
  append_little<uint16_t>(extra, kPaddingExtra);
  append_little<uint16_t>(extra, static_cast<uint16_t>(padding));
  extra.append(padding, 'Z');
  std::string header;
  append_little<uint32_t>(header, 0x04034b50);
  header += common_fields(large, record.crc32, record.size);
  append_little<uint16_t>(header, static_cast<uint16_t>(name.size()));
  append_little<uint16_t>(header, static_cast<uint16_t>(extra.size()));
  file_.write(header + record.name + extra);
  file_.write(data);
  records_.push_back(record);
}

std::string ZipWriter::directory_entry(const Record& record) const {
  const bool large = is_large(record.size), far = is_large(record.offset);
  std::string extra;
  if (large || far) {
    append_little<uint16_t>(extra, kZip64Extra);
    append_little<uint16_t>(extra, static_cast<uint16_t>((large ? 16 : 0) + (far ? 8 : 0)));
    if (large) {
      append_little<uint64_t>(extra, record.size);
      append_little<uint64_t>(extra, record.size);
    }
    if (far) append_little<uint64_t>(extra, record.offset);
  }
  std::string out;
  append_little<uint32_t>(out, 0x02014b50);
  append_little<uint16_t>(out, large || far ? kZip64Version : kStoredVersion);
  out += common_fields(large, record.crc32, record.size);
  append_little<uint16_t>(out, static_cast<uint16_t>(record.name.size()));
  append_little<uint16_t>(out, static_cast<uint16_t>(extra.size()));
  out.append(2 + 2 + 2 + 4, '\0');  // comment, disk, internal and external attributes
  append_little<uint32_t>(out, far ? 0xffffffff : static_cast<uint32_t>(record.offset));
  return out + record.name + extra;
}

void ZipWriter::close() {
  const uint64_t start = file_.offset();
  for (const Record& record : records_) file_.write(directory_entry(record));
  const uint64_t end = file_.offset(), size = end - start, count = records_.size();
  std::string out;
  if (is_large(start) || is_large(size) || count >= 0xffff) {
    append_little<uint32_t>(out, 0x06064b50);
    append_little<uint64_t>(out, 44);
    append_little<uint16_t>(out, kZip64Version);
    append_little<uint16_t>(out, kZip64Version);
    append_little<uint64_t>(out, 0);  // disks
    for (const uint64_t value : {count, count, size, start}) append_little<uint64_t>(out, value);
    append_little<uint32_t>(out, 0x07064b50);
    append_little<uint32_t>(out, 0);
    append_little<uint64_t>(out, end);
    append_little<uint32_t>(out, 1);
  }
  append_little<uint32_t>(out, 0x06054b50);
  append_little<uint32_t>(out, 0);  // disks
  const auto shown_count = static_cast<uint16_t>(std::min<uint64_t>(count, 0xffff));
  append_little<uint16_t>(out, shown_count);
  append_little<uint16_t>(out, shown_count);
  append_little<uint32_t>(out, is_large(size) ? 0xffffffff : static_cast<uint32_t>(size));
  append_little<uint32_t>(out, is_large(start) ? 0xffffffff : static_cast<uint32_t>(start));
  append_little<uint16_t>(out, 0);
  file_.write(out);
  file_.commit();
}

}  // namespace bellows::io
