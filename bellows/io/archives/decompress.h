#pragma once

#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

enum class Compression { none, gzip, bzip2, xz, zstd, lz4 };

/// Detects the compression from the first bytes, not from the file name.
Compression detect_compression(ByteSpan bytes);

/// Returns the limit of the decompressed size for a compressed file of `packed` bytes. The limit is 1000 times
/// `packed`, but at least 256 MiB and at most 16 GiB. Larger content is treated as a decompression bomb.
uint64_t most_unpacked_bytes(uint64_t packed);

/// Returns the complete decompressed content of a gzip, bzip2, xz, zstd or lz4 file. It uses libarchive.
/// Params: where – name of the input for error messages
///         max_bytes – limit for the decompressed size
/// Throws: c10::ValueError if the input is not compressed, is truncated or is corrupt, or if the content is larger than
///         max_bytes
Bytes decompress(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

/// Like decompress(), but returns only the start of the content. The result has at least `count` bytes if the content
/// is that long.
/// Throws: like decompress()
Bytes decompress_start(ByteSpan bytes, std::string_view where, uint64_t count);

/// True if the bytes start like a zlib stream. TensorFlow uses zlib to compress complete files. A zlib stream has no
/// signature, and about one in 2,000 files in other formats starts like a zlib stream. Therefore, rule out all other
/// formats before you call this function.
bool is_zlib(ByteSpan bytes);
/// Returns the complete decompressed content of a zlib stream.
/// Params: like decompress()
/// Throws: like decompress()
Bytes decompress_zlib(ByteSpan bytes, std::string_view where, uint64_t max_bytes = uint64_t{1} << 35);

}  // namespace bellows::io
