#pragma once

#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

enum class Compression { none, gzip, bzip2, xz, zstd, lz4 };

/// By the first bytes, not by the name.
Compression detect_compression(ByteSpan bytes);

/// The most that a compressed file of `packed` bytes may unpack to: a thousand times as much, at least 256 MiB, at most
/// 16 GiB. Beyond that it is taken for a bomb.
uint64_t most_unpacked_bytes(uint64_t packed);

/// The whole content of a gzip, bzip2, xz, zstd or lz4 file (through libarchive).
/// Params: where     – names the input in errors
///         max_bytes – refuses to unpack more than this
/// Throws: c10::ValueError – not compressed, truncated, corrupt, larger than max_bytes
Bytes decompress(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

/// The start of such a file's content: at least `count` bytes where there are so many. Throws: as decompress().
Bytes decompress_start(ByteSpan bytes, std::string_view where, uint64_t count);

/// The head of a zlib stream, which TensorFlow compresses whole files by. It has no signature: one of 2,000 other files
/// begins like it, so ask only where nothing else is possible.
bool is_zlib(ByteSpan bytes);
/// The whole content of a zlib stream. Params and Throws: as decompress().
Bytes decompress_zlib(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

}  // namespace bellows::io
