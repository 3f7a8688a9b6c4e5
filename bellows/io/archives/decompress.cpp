#include "bellows/io/archives/decompress.h"

#include <archive.h>
#include <archive_entry.h>
#include <c10/util/Exception.h>
#include <zlib.h>

#include <algorithm>
#include <memory>

namespace bellows::io {

Compression detect_compression(ByteSpan bytes) {
  using std::string_view_literals::operator""sv;
  const std::string_view text = as_text(bytes);
  if (text.starts_with("\x1f\x8b"sv)) return Compression::gzip;
  if (text.starts_with("BZh"sv)) return Compression::bzip2;
  if (text.starts_with("\xfd"
                       "7zXZ\0"sv))
    return Compression::xz;
  if (text.starts_with("\x28\xb5\x2f\xfd"sv)) return Compression::zstd;
  if (text.starts_with("\x04\x22\x4d\x18"sv)) return Compression::lz4;
  return Compression::none;
}

namespace {

using Archive = std::unique_ptr<archive, decltype(&archive_read_free)>;

/// Allows only the required filter: libarchive's "all" would also start external programs.
void allow(archive* reader, Compression kind) {
  archive_read_support_format_raw(reader);
  switch (kind) {
    case Compression::gzip:
      archive_read_support_filter_gzip(reader);
      break;
    case Compression::bzip2:
      archive_read_support_filter_bzip2(reader);
      break;
    case Compression::xz:
      archive_read_support_filter_xz(reader);
      break;
    case Compression::zstd:
      archive_read_support_filter_zstd(reader);
      break;
    case Compression::lz4:
      archive_read_support_filter_lz4(reader);
      break;
    case Compression::none:
      break;
  }
}

/// Decompresses at least `count` bytes of the content, if there are that many.
Bytes unpack_start(ByteSpan bytes, std::string_view where, uint64_t max_bytes, uint64_t count) {
  const Compression kind = detect_compression(bytes);
  TORCH_CHECK_VALUE(kind != Compression::none, where, ": expected a gzip, bzip2, xz, zstd or lz4 file, found ",
                    describe_content(bytes), ".");
  const Archive reader(archive_read_new(), &archive_read_free);
  TORCH_CHECK(reader, where, ": out of memory.");
  allow(reader.get(), kind);
  Bytes out;
  const auto check = [&](la_ssize_t result) {
    const char* reason = archive_error_string(reader.get());
    TORCH_CHECK_VALUE(result >= 0, where, ": ", describe_content(bytes), " is truncated or corrupt after ", out.size(),
                      " unpacked bytes: ", reason ? reason : "no reason reported", ".");
  };
  check(archive_read_open_memory(reader.get(), bytes.data(), bytes.size()));
  archive_entry* entry = nullptr;
  check(archive_read_next_header(reader.get(), &entry));
  // Too few bytes for a header: libarchive would return them unchanged.
  TORCH_CHECK_VALUE(archive_filter_code(reader.get(), 0) != ARCHIVE_FILTER_NONE, where, ": ", describe_content(bytes),
                    " is truncated: it has only ", bytes.size(), " bytes.");
  constexpr size_t step = 1 << 20;
  for (;;) {
    const size_t filled = out.size();
    out.resize(filled + step);
    const la_ssize_t got = archive_read_data(reader.get(), out.data() + filled, step);
    out.resize(filled + (got > 0 ? static_cast<size_t>(got) : 0));
    check(got);
    if (got == 0 || out.size() >= count) return out;
    TORCH_CHECK_VALUE(out.size() <= max_bytes, where, ": the unpacked data exceeds the limit of ", max_bytes,
                      " bytes.");
  }
}

}  // namespace

uint64_t most_unpacked_bytes(uint64_t packed) {
  constexpr uint64_t least = uint64_t{256} << 20, most = uint64_t{16} << 30;
  return packed > most / 1000 ? most : std::max(least, packed * 1000);
}

Bytes decompress(ByteSpan bytes, std::string_view where, uint64_t max_bytes) {
  return unpack_start(bytes, where, max_bytes, UINT64_MAX);
}

Bytes decompress_start(ByteSpan bytes, std::string_view where, uint64_t count) {
  return unpack_start(bytes, where, UINT64_MAX, count);
}

bool is_zlib(ByteSpan bytes) {
  if (bytes.size() < 2) return false;
  const auto method = std::to_integer<unsigned>(bytes[0]), flags = std::to_integer<unsigned>(bytes[1]);
  return (method & 15) == 8 && method >> 4 <= 7 && (flags & 32) == 0 && (method << 8 | flags) % 31 == 0;
}

Bytes decompress_zlib(ByteSpan bytes, std::string_view where, uint64_t max_bytes) {
  z_stream stream{};
  TORCH_CHECK(inflateInit(&stream) == Z_OK, where, ": out of memory.");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  constexpr size_t step = 1 << 20;
  Bytes out;
  for (int result = Z_OK; result != Z_STREAM_END;) {
    if (stream.avail_in == 0) {  // zlib's counters have 32 bits
      const ByteSpan part = bytes.first(std::min<size_t>(bytes.size(), 1 << 30));
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(part.data()));
      stream.avail_in = static_cast<uInt>(part.size());
      bytes = bytes.subspan(part.size());
    }
    const size_t filled = out.size();
    out.resize(filled + step);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream.avail_out = step;
    result = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
    TORCH_CHECK_VALUE(result == Z_OK || result == Z_STREAM_END, where, ": a zlib stream is truncated or corrupt after ",
                      out.size(), " unpacked bytes: ", stream.msg ? stream.msg : "the stream ends early", ".");
    TORCH_CHECK_VALUE(out.size() <= max_bytes, where, ": the unpacked data exceeds the limit of ", max_bytes,
                      " bytes.");
  }
  TORCH_CHECK_VALUE(bytes.empty() && stream.avail_in == 0, where, ": ", bytes.size() + stream.avail_in,
                    " bytes after the end of a zlib stream.");
  return out;
}

}  // namespace bellows::io
