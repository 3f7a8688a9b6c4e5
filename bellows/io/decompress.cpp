#include "bellows/io/decompress.h"

#include <archive.h>
#include <archive_entry.h>
#include <c10/util/Exception.h>

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

/// Only the filters named: libarchive's "all" would also start external programs.
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

}  // namespace

Bytes decompress(ByteSpan bytes, std::string_view where, uint64_t max_bytes) {
  const Compression kind = detect_compression(bytes);
  TORCH_CHECK_VALUE(kind != Compression::none, where, ": expected a gzip, bzip2, xz, zstd or lz4 file, found ",
                    describe_content(bytes), ".");
  const Archive reader(archive_read_new(), &archive_read_free);
  TORCH_CHECK(reader, where, ": out of memory.");
  allow(reader.get(), kind);
  Bytes out;
  const auto check = [&](la_ssize_t result) {
    const char* reason = archive_error_string(reader.get());
    TORCH_CHECK_VALUE(result >= 0, where, ": ", describe_content(bytes), " that is truncated or corrupt after ",
                      out.size(), " unpacked bytes: ", reason ? reason : "no reason given", ".");
  };
  check(archive_read_open_memory(reader.get(), bytes.data(), bytes.size()));
  archive_entry* entry = nullptr;
  check(archive_read_next_header(reader.get(), &entry));
  // Too few bytes for a header: libarchive would hand them out as they are.
  TORCH_CHECK_VALUE(archive_filter_code(reader.get(), 0) != ARCHIVE_FILTER_NONE, where, ": ", describe_content(bytes),
                    " that is truncated: it has ", bytes.size(), " bytes.");
  constexpr size_t step = 1 << 20;
  for (;;) {
    const size_t filled = out.size();
    out.resize(filled + step);
    const la_ssize_t got = archive_read_data(reader.get(), out.data() + filled, step);
    out.resize(filled + (got > 0 ? static_cast<size_t>(got) : 0));
    check(got);
    if (got == 0) return out;
    TORCH_CHECK_VALUE(out.size() <= max_bytes, where, ": unpacks to more than the limit of ", max_bytes, " bytes.");
  }
}

}  // namespace bellows::io
