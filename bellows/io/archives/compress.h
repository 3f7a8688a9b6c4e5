#pragma once

#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// A compression format for complete files, in MDS notation: "zstd", "zstd:7", "gz", "bz2", "br", "snappy".
struct Codec {
  enum class Kind { brotli, bzip2, gzip, snappy, zstd };
  Kind kind = Kind::zstd;
  int level = 0;          ///< compression level; 0 for snappy
  std::string extension;  ///< "zstd", without the level

  /// Parses a codec. The default levels are 11 for br, 9 for bz2 and gz, and 3 for zstd.
  /// Throws: c10::ValueError if the codec is unknown (the message suggests the nearest name), or if it does not support
  ///         the level
  static Codec parse(std::string_view text);
};

/// Compresses bytes. The result is bit-identical to that of the reference if both use the same library versions, except
/// that the timestamp of gzip is 0.
/// Ref: streaming.base.compression.compress
Bytes compress(ByteSpan bytes, const Codec& codec);

/// Decompresses bytes. The result must have `size` bytes. Memory grows with the actual data, not with the declared
/// size.
/// Params: where – name of the input for error messages
/// Throws: c10::ValueError if the input is corrupt or truncated, or if the result does not have `size` bytes
Bytes uncompress(ByteSpan bytes, const Codec& codec, uint64_t size, std::string_view where);

/// Like uncompress(), but for the raw deflate streams in zip files.
Bytes inflate_raw(ByteSpan bytes, uint64_t size, std::string_view where);

}  // namespace bellows::io
