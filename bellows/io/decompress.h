#pragma once

#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

enum class Compression { none, gzip, bzip2, xz, zstd, lz4 };

/// By the first bytes, not by the name.
Compression detect_compression(ByteSpan bytes);

/// The whole content of a gzip, bzip2, xz, zstd or lz4 file (through libarchive).
/// Params: where     – names the input in errors
///         max_bytes – refuses to unpack more than this
/// Throws: c10::ValueError – not compressed, truncated, corrupt, larger than max_bytes
Bytes decompress(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

}  // namespace bellows::io
