#include <c10/util/Exception.h>

#include "bellows/core/round_up.h"
#include "bellows/io/archives/decompress.h"
#include "bellows/io/archives/tar.h"

namespace bellows::io {

namespace {

constexpr uint64_t kBlock = 512;
constexpr size_t kMaxNameBytes = 64 << 10;  // file systems allow 4096

std::string_view tar_field(ByteSpan header, size_t offset, size_t length) {
  const std::string_view text = as_text(header.subspan(offset, length));
  return text.substr(0, text.find('\0'));
}

/// Parses octal digits between spaces, or GNU's base 256 if the first bit is set; returns nothing otherwise.
std::optional<uint64_t> tar_number(ByteSpan header, size_t offset, size_t length) {
  const ByteSpan raw = header.subspan(offset, length);
  uint64_t value = 0;
  if (std::to_integer<int>(raw[0]) == 0x80) {
    for (const std::byte b : raw.subspan(1)) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | std::to_integer<uint64_t>(b);
    }
    return value;
  }
  std::string_view text = tar_field(header, offset, length);
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  for (const char c : text) {
    if (c < '0' || c > '7' || value >> 60) return std::nullopt;
    value = value << 3 | static_cast<uint64_t>(c - '0');
  }
  return value;
}

bool is_zero(ByteSpan block) {
  return as_text(block).find_first_not_of('\0') == std::string_view::npos;
}

std::string ustar_name(ByteSpan header) {
  std::string name(tar_field(header, 0, 100));
  const bool posix = as_text(header.subspan(257, 6)) == std::string_view("ustar\0", 6);
  const std::string_view prefix = posix ? tar_field(header, 345, 155) : std::string_view();
  return prefix.empty() ? name : std::string(prefix) + "/" + name;
}

}  // namespace

/// The checksum covers the header, with spaces in the checksum field.
bool is_tar_header(ByteSpan block) {
  uint64_t sum = 8 * ' ';
  for (size_t i = 0; i < block.size(); ++i) sum += i >= 148 && i < 156 ? 0 : std::to_integer<uint64_t>(block[i]);
  return tar_number(block, 148, 8) == sum;
}

/// The information in earlier headers about the next file.
struct TarReader::Extension {
  std::optional<std::string> name;
  std::optional<uint64_t> size;
  bool sparse = false;

  /// Parses records "LENGTH KEY=VALUE\n". Returns false if they are malformed.
  bool read_pax(std::string_view text);
};

bool TarReader::Extension::read_pax(std::string_view text) {
  while (!text.empty()) {
    size_t length = 0, at = 0;
    while (at < text.size() && at < 10 && text[at] >= '0' && text[at] <= '9')
      length = length * 10 + static_cast<size_t>(text[at++] - '0');
    if (at >= text.size() || text[at] != ' ' || length <= at + 1 || length > text.size() || text[length - 1] != '\n')
      return false;
    const std::string_view record = text.substr(at + 1, length - at - 2);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") {
      if (value.size() > kMaxNameBytes) return false;
      name = std::string(value);
    }
    if (key.starts_with("GNU.sparse.")) sparse = true;
    if (key == "size") {
      if (value.empty() || value.size() > 18 || value.find_first_not_of("0123456789") != std::string_view::npos)
        return false;
      size = std::stoull(std::string(value));
    }
    text.remove_prefix(length);
  }
  return true;
}

TarReader::TarReader(const std::string& path) : where_(path) {
  file_ = std::make_shared<const MappedFile>(path);
  bytes_ = file_->bytes();
  if (detect_compression(bytes_) != Compression::none) {
    unpacked_ = std::make_shared<const Bytes>(decompress(bytes_, path));
    bytes_ = *unpacked_;
    file_ = nullptr;
  }
  TORCH_CHECK_VALUE(!bytes_.empty(), path, ": expected a tar archive, found an empty file.");
  block_at(0);
}

TarReader::TarReader(ByteSpan bytes, std::string where) : where_(std::move(where)), bytes_(bytes) {}

/// Returns a header block after verifying its checksum; empty at the end of the archive.
ByteSpan TarReader::block_at(uint64_t offset) const {
  // The end is two zero blocks. One is enough here, but none is an error, to detect shards truncated between two
  // members.
  TORCH_CHECK_VALUE(offset <= bytes_.size() && bytes_.size() - offset >= kBlock, where_, ": truncated at byte ",
                    bytes_.size(), ": expected a tar header or the end-of-archive block of 512 bytes at byte ", offset,
                    ".");
  const ByteSpan block = bytes_.subspan(offset, kBlock);
  if (is_zero(block)) return {};
  if (!is_tar_header(block)) {
    TORCH_CHECK_VALUE(offset > 0, where_, ": expected a tar archive, found ", describe_content(bytes_), ".");
    TORCH_CHECK_VALUE(false, where_, ": expected a tar header at byte ", offset, ", found ",
                      printable(as_text(block), 16), " whose checksum does not match: the archive is corrupt.");
  }
  return block;
}

/// Returns the data after the header at `*position` and advances `*position` to the next header.
ByteSpan TarReader::payload(ByteSpan header, const Extension& extension, uint64_t* position) const {
  const uint64_t start = *position + kBlock;
  std::optional<uint64_t> size = extension.size ? extension.size : tar_number(header, 124, 12);
  TORCH_CHECK_VALUE(size, where_, ": expected a size at byte ", *position + 124, ", found ",
                    printable(as_text(header.subspan(124, 12))), ".");
  const char type = static_cast<char>(header[156]);
  if (type >= '1' && type <= '6') size = 0;  // links, devices, folders: they have no data, regardless of the field
  TORCH_CHECK_VALUE(*size <= bytes_.size() - start, where_, ": truncated: \"", ustar_name(header), "\" needs ", *size,
                    " bytes from byte ", start, ", but the archive has only ", bytes_.size() - start, ".");
  const uint64_t padded = round_up(*size, kBlock);
  TORCH_CHECK_VALUE(padded <= bytes_.size() - start, where_, ": truncated at byte ", bytes_.size(),
                    " in the padding of \"", ustar_name(header), "\", which ends at byte ", start + padded, ".");
  *position = start + padded;
  return bytes_.subspan(start, *size);
}

std::optional<TarEntry> TarReader::read(uint64_t* position) const {
  Extension extension;
  for (;;) {
    const uint64_t at = *position;
    const ByteSpan header = block_at(at);
    if (header.empty()) return std::nullopt;
    const char type = static_cast<char>(header[156]);
    const bool is_extension = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    const ByteSpan data = payload(header, is_extension ? Extension{} : extension, position);
    if (type == 'L') {
      TORCH_CHECK_VALUE(data.size() <= kMaxNameBytes, where_, ": expected a name of at most ", kMaxNameBytes,
                        " bytes at byte ", at + kBlock, ", found one of ", data.size(), ": the archive is corrupt.");
      extension.name = std::string(as_text(data).substr(0, as_text(data).find('\0')));
    } else if (type == 'x') {
      TORCH_CHECK_VALUE(extension.read_pax(as_text(data)), where_, ": found a malformed pax header at byte ",
                        at + kBlock, ".");
    } else if (is_extension) {
      continue;
    } else if (type == '0' || type == '\0' || type == '7') {
      TORCH_CHECK_VALUE(!extension.sparse, where_, ": found a sparse file at byte ", at,
                        ": sparse files are not supported. Create the archive without --sparse.");
      std::string name = extension.name ? *extension.name : ustar_name(header);
      // Before POSIX, a folder was a file whose name ended with a slash.
      if (!name.ends_with('/')) return TarEntry{std::move(name), data, at + kBlock};
      extension = {};
    } else {
      TORCH_CHECK_VALUE(type != 'S', where_, ": found a sparse file at byte ", at,
                        ": sparse files are not supported. Create the archive without --sparse.");
      extension = {};
    }
  }
}

std::optional<TarEntry> TarReader::next() {
  uint64_t position = position_;
  std::optional<TarEntry> entry = read(&position);
  position_ = position;
  return entry;
}

std::vector<TarEntry> TarReader::index() const {
  std::vector<TarEntry> entries;
  for (uint64_t position = 0;;) {
    std::optional<TarEntry> entry = read(&position);
    if (!entry) return entries;
    entries.push_back(std::move(*entry));
  }
}

}  // namespace bellows::io
