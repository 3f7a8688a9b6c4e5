#include <c10/util/Exception.h>

#include <array>

#include "bellows/core/round_up.h"
#include "bellows/io/archives/tar.h"

namespace bellows::io {

namespace {

constexpr uint64_t kTarBlock = 512;
constexpr uint64_t kTarRecord = 10240;
constexpr uint64_t kMaxUstarSize = uint64_t{1} << 33;

using TarHeader = std::array<char, kTarBlock>;

void put_text(TarHeader& header, size_t offset, size_t length, std::string_view text) {
  text.substr(0, length).copy(header.data() + offset, length);
}

/// Writes an octal number with leading zeros and a terminating NUL.
void put_octal(TarHeader& header, size_t offset, size_t length, uint64_t value) {
  for (size_t i = length - 1; i-- > 0; value >>= 3) header[offset + i] = static_cast<char>('0' + (value & 7));
}

/// Position where a long name splits into ustar's prefix and name, or npos if it does not fit.
size_t ustar_split(std::string_view name) {
  for (size_t slash = name.find('/'); slash != std::string_view::npos && slash <= 155;
       slash = name.find('/', slash + 1)) {
    if (name.size() - slash - 1 <= 100 && slash > 0 && slash + 1 < name.size()) return slash;
  }
  return std::string_view::npos;
}

/// One pax record; its length includes its own digits.
std::string pax_record(std::string_view key, std::string_view value) {
  const size_t rest = key.size() + value.size() + 3;
  size_t length = rest + 1;
  while (rest + std::to_string(length).size() != length) ++length;
  return std::to_string(length) + " " + std::string(key) + "=" + std::string(value) + "\n";
}

}  // namespace

TarWriter::TarWriter(const std::string& path, TarWriterOptions options) : file_(path), options_(std::move(options)) {}

void TarWriter::add(std::string_view name, ByteSpan data) {
  TORCH_CHECK_VALUE(!name.empty() && name.find('\0') == std::string_view::npos && !name.ends_with('/'),
                    "TarWriter: expected a file name without NUL and not ending in a slash, found ", printable(name),
                    ".");
  std::string_view prefix, base = name;
  std::string pax;
  if (name.size() > 100) {
    const size_t split = ustar_split(name);
    if (split == std::string_view::npos) {
      pax += pax_record("path", name);
      base = name.substr(name.size() - 100);
    } else {
      prefix = name.substr(0, split);
      base = name.substr(split + 1);
    }
  }
  if (data.size() >= kMaxUstarSize) pax += pax_record("size", std::to_string(data.size()));
  if (!pax.empty()) write_member('x', "", "././@PaxHeader", as_bytes(pax));
  write_member('0', prefix, base, data);
}

void TarWriter::write_member(char type, std::string_view prefix, std::string_view name, ByteSpan data) {
  TarHeader header{};
  put_text(header, 0, 100, name);
  put_octal(header, 100, 8, options_.mode);
  put_octal(header, 108, 8, 0);
  put_octal(header, 116, 8, 0);
  put_octal(header, 124, 12, data.size() < kMaxUstarSize ? data.size() : 0);
  put_octal(header, 136, 12, options_.mtime);
  header[156] = type;
  put_text(header, 257, 8, std::string_view("ustar\00000", 8));
  put_text(header, 265, 31, options_.owner);
  put_text(header, 297, 31, options_.owner);
  put_text(header, 345, 155, prefix);
  uint64_t sum = 8 * ' ';
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put_octal(header, 148, 7, sum);
  header[155] = ' ';
  file_.write(std::string_view(header.data(), header.size()));
  file_.write(data);
  file_.write(std::string((kTarBlock - data.size() % kTarBlock) % kTarBlock, '\0'));
}

void TarWriter::close() {
  const uint64_t end = file_.offset() + 2 * kTarBlock;
  const uint64_t padded = round_up(end, kTarRecord);
  file_.write(std::string(padded - file_.offset(), '\0'));
  file_.commit();
}

}  // namespace bellows::io
