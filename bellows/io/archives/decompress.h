#pragma once

#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

enum class Compression { none, gzip, bzip2, xz, zstd, lz4 };

/// Detects the compression from the first bytes, not from the file name.
Compression detect_compression(ByteSpan bytes);

/// The limit of the decompressed size of a file of `packed` bytes: 1000 times as much, at least 256 MiB, at most 16
/// GiB. Larger content is treated as a decompression bomb.
uint64_t most_unpacked_bytes(uint64_t packed);

/// Returns the whole content of a gzip, bzip2, xz, zstd or lz4 file (through libarchive).
/// Params: where – names the input in errors
///         max_bytes – limit of the decompressed size
/// Throws: c10::ValueError if the input is not compressed, truncated or corrupt, or if the content is larger than
///         max_bytes
Bytes decompress(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

/// Returns the start of such a file's content: at least `count` bytes if the content is that long.
/// Throws: as decompress()
Bytes decompress_start(ByteSpan bytes, std::string_view where, uint64_t count);

/// True if the bytes start like a zlib stream, with which TensorFlow compresses whole files. zlib has no signature: one
/// in 2,000 other files starts the same way, so call it only after all other formats were ruled out.
bool is_zlib(ByteSpan bytes);
/// Returns the whole content of a zlib stream.
/// Params: as decompress()
/// Throws: as decompress()
Bytes decompress_zlib(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

}  // namespace bellows::io
